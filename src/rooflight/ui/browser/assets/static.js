// The explorer as a folder of files: a worker of this page has Python and answers what a server
// would. `respond` is what explore.js asks; nothing leaves the page.

const base = new URL("../", import.meta.url).pathname;
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let last = 0;
for (const link of document.head.querySelectorAll("link")) link.href = link.href; // for any address

worker.onmessage = ({ data }) => {
  if (data.note !== undefined) {
    for (const line of document.querySelectorAll(".loading")) {
      line.dataset.note = line.textContent = data.note;
      if (!data.note) delete line.dataset.note;
    }
    return;
  }
  const { status, text, type } = data;
  const inPlace = type.startsWith("text/html") ? relative(text) : text;
  waiting.get(data.id)({ ok: status === 200, status, type, text: async () => inPlace });
  waiting.delete(data.id);
};

// Links of the site are from its root; here the root is wherever the folder lies.
function relative(markup) {
  const moved = markup.replace(/href="\/(\w+)(?=["?])/g, `href="${base}$1/`);
  const bare = moved.replace(/<img class="thumb"[^>]*>/g, "");  // no server draws them
  return bare.replaceAll('href="/api/', `href="${base}api/`);
}

globalThis.respond = (address) => {
  const [path, query] = address.replace(base, "/").split("?");
  if (path.startsWith("/progress/")) return Promise.resolve({ ok: false });
  return new Promise((done) => {
    last += 1;
    waiting.set(last, done);
    worker.postMessage({ id: last, path, query: query ?? "" });
  });
};

// What would be downloaded from a server is made here.
async function download(link) {
  const { pathname, search } = new URL(link.href);
  const made = await globalThis.respond(pathname + search);
  const blob = URL.createObjectURL(new Blob([await made.text()], { type: made.type }));
  Object.assign(document.createElement("a"), { href: blob, download: link.download }).click();
  setTimeout(() => URL.revokeObjectURL(blob), 10_000);
}

// Another view takes the place of this one: the page stays, and Python with it.
let opened = 0;
async function open(url) {
  const there = await (await fetch(url.pathname)).text();
  const page = new DOMParser().parseFromString(there, "text/html");
  for (const link of page.querySelectorAll("[href]")) {
    const at = link.getAttribute("href");
    if (!at.startsWith("#")) link.setAttribute("href", new URL(at, url.origin + url.pathname).pathname);
  }
  document.title = page.title;
  document.body.replaceChildren(...page.body.childNodes);
  scrollTo(0, 0);
  opened += 1;
  await import(`./explore.js?${opened}`); // runs again, for the new form
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !url.pathname.startsWith(base)) return;
  if (link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  if (link.hasAttribute("download")) {
    download(link);
    return;
  }
  history.pushState(null, "", url);
  open(url);
});
addEventListener("popstate", () => open(new URL(location.href)));
