// Python in a worker: loads Pyodide and the package from this folder, then answers paths.

const note = (words) => postMessage({ note: words });

async function start() {
  note("Loading Python into this page ...");
  const root = new URL("../", import.meta.url);
  const { loadPyodide } = await import(new URL("pyodide/pyodide.mjs", root));
  const python = await loadPyodide({ indexURL: new URL("pyodide/", root).href });
  const has = await (await fetch(new URL("static.json", root))).json();
  if (has.numpy) await python.loadPackage(new URL(has.numpy, root).href);
  note("Loading rooflight ...");
  const archive = await (await fetch(new URL("rooflight.zip", root))).arrayBuffer();
  python.unpackArchive(archive, "zip", { extractDir: "/rooflight" });
  python.runPython("import sys; sys.path.insert(0, '/rooflight')");
  note("");
  return python.pyimport(has.answers).respond;
}

const started = start();

onmessage = async ({ data }) => {
  try {
    const answered = (await started)(data.path, data.query);
    const [status, type, text] = answered.toJs();
    answered.destroy();
    postMessage({ id: data.id, status, type, text });
  } catch (error) {
    console.error(error);
    postMessage({ id: data.id, status: 500, type: "text/plain", text: String(error) });
  }
};
