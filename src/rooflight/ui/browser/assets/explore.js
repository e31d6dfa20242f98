// The page of the explorer: sends the form as it changes and shows what comes back.
// Nothing is computed here. One request of a kind is under way at a time; the newest question
// waits for it and those between are never sent, so a slow answer is late once, not many times.

const PAUSE_MS = 120; // somebody is still typing; a slider is sent at once
const MORE_PAUSE_MS = 250; // before what takes longer is asked for
const PROGRESS_MS = 400; // after which somebody wants to know how far it is, and how often

// A server answers, or in a folder of files a worker of the page (static.js).
const respond = globalThis.respond ?? fetch;

const main = document.querySelector("main[data-view]");
const form = document.querySelector("form.question");
const status = document.getElementById("status");
document.documentElement.classList.add("scripted");

function question() {
  return new URLSearchParams(new FormData(form)).toString();
}

function say(words) {
  if (status) status.textContent = words;
}

// ---- asking -----------------------------------------------------------------------------------

class Part {
  constructor(slot, next) {
    this.slot = slot;
    this.next = next;
    this.path = `/part/${main.dataset.view}${slot.id === "answer" ? "" : `/${slot.id}`}`;
    this.wanted = null; // the newest question, if it is not under way
    this.isBusy = false;
  }

  ask(query) {
    this.wanted = query;
    this.slot.dataset.state = "stale";
    this.slot.setAttribute("aria-busy", "true");
    if (!this.isBusy) this.run();
  }

  async run() {
    this.isBusy = true;
    while (this.wanted !== null) {
      const query = this.wanted;
      this.wanted = null;
      say(this.slot.id === "answer" ? "Asking ..." : "");
      const progress = setInterval(() => this.progress(start), PROGRESS_MS);
      const start = Date.now();
      const shown = await this.fetch(query);
      clearInterval(progress);
      if (query === current) this.show(shown, query); // else it is old, and stays grey
    }
    this.isBusy = false;
  }

  async progress(start) {
    let line = this.slot.querySelector(".loading");
    if (!line) {
      line = document.createElement("p");
      line.className = "loading";
      this.slot.prepend(line);
    }
    const seconds = `Working it out ... ${Math.round((Date.now() - start) / 1000)} s`;
    if (!line.dataset.note) line.textContent = seconds;
    const known = await respond(`/progress/${main.dataset.view}`);
    if (!known.ok) return;
    const words = JSON.parse(await known.text()).progress;
    if (words && this.isBusy) line.textContent = `${seconds}: ${words}`;
  }

  async fetch(query) {
    try {
      const response = await respond(`${this.path}?${query}`);
      if (response.ok || response.status === 422) {
        return { markup: await response.text(), isGood: response.ok };
      }
      return { words: await response.text(), isGood: false };
    } catch {
      return { words: "The explorer does not answer: is it still running?", isGood: false };
    }
  }

  show(shown, query) {
    const open = openDetails(this.slot);
    if (shown.markup === undefined) {
      const box = document.createElement("p");
      box.className = "error";
      box.setAttribute("role", "alert");
      box.textContent = shown.words;
      this.slot.replaceChildren(box);
    } else {
      this.slot.innerHTML = shown.markup;
    }
    this.slot.dataset.state = shown.isGood ? "fresh" : "refused";
    this.slot.dataset.query = query;
    this.slot.removeAttribute("aria-busy");
    reopen(this.slot, open);
    dress(this.slot);
    if (this.slot.id === "answer") {
      say(shown.isGood ? "Answered." : "The question needs a change.");
      if (this.next) this.follow(shown.isGood, query);
    }
  }

  follow(isGood, query) {
    clearTimeout(this.later);
    if (!isGood) this.next.clear();
    else this.later = setTimeout(() => this.next.ask(query), MORE_PAUSE_MS);
  }

  hold() {
    clearTimeout(this.later);
    if (this.next) this.next.wanted = null;
  }

  clear() {
    this.wanted = null;
    this.slot.replaceChildren();
    this.slot.dataset.state = "empty";
    this.slot.removeAttribute("aria-busy");
  }
}

function openDetails(slot) {
  return [...slot.querySelectorAll("details[open] > summary")].map((s) => s.textContent);
}

function reopen(slot, open) {
  for (const summary of slot.querySelectorAll("details > summary")) {
    if (open.includes(summary.textContent)) summary.parentElement.open = true;
  }
}

// ---- the form ---------------------------------------------------------------------------------

let timer = 0;
let current = ""; // the question that the page is about

function changed(pause) {
  clearTimeout(timer);
  answer.hold(); // what takes longer would only slow the new answer down
  timer = setTimeout(() => {
    current = question();
    history.replaceState(null, "", `?${current}`);
    if (more) more.slot.dataset.state = "stale"; // grey at once: it belongs to the old question
    answer.ask(current);
  }, pause);
}

function moveField(range) {
  const stop = range.dataset.stops.split(" ")[Number(range.value)];
  document.getElementById(range.dataset.for).value = stop;
  range.setAttribute("aria-valuetext", stop);
}

function follow(field) {
  const range = form.querySelector(`input[type=range][data-for="${field.id}"]`);
  const at = range ? range.dataset.stops.split(" ").indexOf(field.value) : -1;
  if (at >= 0) {
    range.value = at;
    range.setAttribute("aria-valuetext", field.value);
  }
}

// What the address says, into a form that was made before anybody asked.
function fillPage(asked) {
  for (const [name, value] of asked) {
    const field = document.getElementById(`f-${name}`);
    if (!field) continue;
    field.value = value;
    follow(field);
  }
}

// Fields that count only for some values of another one stand back for the rest.
function standBack() {
  for (const box of form.querySelectorAll("[data-when]")) {
    const value = document.getElementById(box.dataset.when).value;
    box.hidden = !box.dataset.values.split("|").includes(value);
  }
}

// ---- exports ----------------------------------------------------------------------------------

function save(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

async function savePng(button) {
  const link = button.parentElement.querySelector("a[href*='.svg']");
  const { pathname, search } = new URL(link.href);
  const text = await (await respond(pathname + search)).text();
  const source = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * 2;
  canvas.height = image.naturalHeight * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(source);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  const made = URL.createObjectURL(blob);
  save(made, button.dataset.png);
  setTimeout(() => URL.revokeObjectURL(made), 10_000);
}

async function copyCommand(button) {
  const words = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(words);
    say("The command is copied.");
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    say("The command is selected: copy it with your keyboard.");
  }
}

// ---- films ------------------------------------------------------------------------------------

class Film {
  constructor(figure) {
    this.figure = figure;
    this.stills = [...figure.querySelectorAll(".still")];
    this.range = figure.querySelector("input[type=range]");
    this.play = figure.querySelector("[data-film=play]");
    this.at = 0;
    this.timer = 0;
    this.range.addEventListener("input", () => this.show(Number(this.range.value)));
    figure.querySelector("[data-film=back]").addEventListener("click", () => this.step(-1));
    figure.querySelector("[data-film=on]").addEventListener("click", () => this.step(1));
    this.play.addEventListener("click", () => this.toggle());
    figure.addEventListener("keydown", (event) => this.key(event));
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!isCalm && this.stills.length > 1) this.start();
  }

  show(index) {
    this.at = (index + this.stills.length) % this.stills.length;
    this.stills.forEach((still, i) => still.toggleAttribute("hidden", i !== this.at));
    this.range.value = this.at;
    const words = this.stills[this.at].dataset.words;
    this.range.setAttribute("aria-valuetext", words);
    this.figure.querySelector(".words").textContent = words;
    const count = `${this.at + 1} of ${this.stills.length}`;
    this.figure.querySelector("output").textContent = count;
    this.nameStill(this.at + 1);
  }

  nameStill(number) {
    const link = this.figure.querySelector(".saves a");
    const png = this.figure.querySelector("[data-png]");
    link.href = link.href.replace(/(picture=[\w-]+)\.\d+/, `$1.${number}`);
    link.download = link.download.replace(/\.\d+\.svg$/, `.${number}.svg`);
    png.dataset.png = png.dataset.png.replace(/\.\d+\.png$/, `.${number}.png`);
  }

  step(by) {
    this.stop();
    this.show(this.at + by);
  }

  start() {
    this.play.textContent = "Pause";
    // A reader hears the words of a step that was asked for, not of every step that passes.
    this.figure.querySelector(".words").setAttribute("aria-live", "off");
    const pause = Number(this.figure.dataset.seconds) * 1000;
    this.timer = setInterval(() => {
      if (this.figure.isConnected) this.show(this.at + 1);
      else clearInterval(this.timer);
    }, pause);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
    this.figure.querySelector(".words").setAttribute("aria-live", "polite");
  }

  toggle() {
    if (this.timer) this.stop();
    else this.start();
  }

  key(event) {
    if (event.target === this.range) return; // it moves by itself
    if (event.key === "ArrowRight") this.step(1);
    else if (event.key === "ArrowLeft") this.step(-1);
    else if (event.key === " " && event.target.tagName !== "BUTTON") this.toggle();
    else return;
    event.preventDefault();
  }
}

function dress(place) {
  for (const figure of place.querySelectorAll("figure.film")) new Film(figure);
}

// ---- keys -------------------------------------------------------------------------------------

const dialog = document.getElementById("keys");

const isGone = () => main !== null && !main.isConnected; // another view has taken its place

document.addEventListener("keydown", (event) => {
  if (isGone()) return;
  const isTyping = event.target.closest?.("input:not([type=range]), select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?" && dialog) dialog.showModal();
  else if (event.key === "/" && form) form.querySelector("input, select").focus();
  else return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || isGone()) return;
  if (button.dataset.png) savePng(button);
  else if ("copy" in button.dataset) copyCommand(button);
  else if ("keys" in button.dataset) dialog.showModal();
});

let answer = null;
let more = null;

if (main && form) {
  const slot = document.getElementById("more");
  more = slot ? new Part(slot, null) : null;
  answer = new Part(document.getElementById("answer"), more);
  form.addEventListener("input", (event) => {
    if (event.target.dataset.stops) moveField(event.target);
    else follow(event.target);
    standBack();
    changed(event.target.dataset.stops ? 0 : PAUSE_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    changed(0);
  });
  if (answer.slot.dataset.state === "asked") fillPage(new URLSearchParams(location.search));
  standBack();
  current = question();
  dress(document);
  if (answer.slot.dataset.state === "asked") answer.ask(current);
  document.querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "center" });
  const isRefused = answer.slot.querySelector(".error") !== null;
  const isAnswered = answer.slot.dataset.state === "fresh" && !isRefused;
  if (more && more.slot.dataset.state === "asked" && isAnswered) more.ask(current);
}
