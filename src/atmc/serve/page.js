"use strict";
// Everything that comes from the server is set as text, never as HTML.
const $ = (id) => document.getElementById(id);
const percent = (p) => `${(100 * p).toFixed(1)} %`;
const digits = (v) => Number(v).toPrecision(3);
let model = null;

function say(text, bad = false) {
  $("state").textContent = text;
  $("state").className = bad ? "bad" : "";
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is atmc serve still running?");
  }
  const found = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function bar(share) {
  const made = element("i");
  made.style.setProperty("--share", `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%`);
  made.setAttribute("aria-hidden", "true");
  return made;
}

function show(answer, picture, small) {
  const article = $("answer").content.cloneNode(true).querySelector("article");
  const part = (name) => article.querySelector(name);
  if (picture) {
    const image = part("img");
    image.src = picture;
    image.alt = "the image that was asked about";
    image.hidden = false;
    image.classList.toggle("small", small);
  }
  article.classList.toggle("refuse", answer.refuse === true);
  article.classList.toggle("keep", answer.refuse === false);
  part(".why").textContent = [answer.why, ...answer.notes].filter(Boolean).join(" · ");
  if (model.task === "regression") showNumber(answer, part);
  else showClass(answer, part);
  $("answers").prepend(article);
  while ($("answers").children.length > 30) {
    const last = $("answers").lastElementChild;
    URL.revokeObjectURL(last.querySelector("img").src);
    last.remove();
  }
}

function showClass(answer, part) {
  const sure = `${answer.label}, ${percent(answer.confidence)} confident`;
  part(".verdict").textContent = answer.refuse ? `Refuse: perhaps ${sure}` : sure;
  for (const one of answer.bars) {
    const line = element("li");
    line.append(element("span", one.label), bar(one.probability), element("span", percent(one.probability)));
    part(".bars").append(line);
  }
  const most = Math.log(Math.max(model.classes.length, 2));
  for (const [name, value, about] of [
    ["total", answer.entropy, "how spread out the probabilities are"],
    ["in the input (aleatoric)", answer.aleatoric, "more training data would not reduce it"],
    ["of the model (epistemic)", answer.epistemic, "where the samples disagree; more training data would reduce it"],
  ]) {
    const line = element("div");
    const term = element("dt", name);
    term.title = about;
    line.append(term, bar(value / most), element("dd", `${value.toFixed(2)} nats`));
    part(".uncertainty").append(line);
  }
  for (const one of answer.samples) {
    const box = element("span", one.label, one.label === answer.label ? "" : "other");
    box.style.setProperty("--share", `${(60 * one.probability).toFixed(0)}%`);
    box.title = `${one.label}: ${percent(one.probability)}`;
    part(".samples").append(box);
  }
  part(".agree").textContent = `${percent(answer.agreement)} of the samples agree with the answer.`;
}

function showNumber(answer, part) {
  const said = answer.mean.map((mean, i) => `${digits(mean)} ± ${digits(answer.std[i])}`).join(", ");
  part(".verdict").textContent = said;
  const top = Math.max(...answer.std, 1e-12);
  for (const [name, values] of [
    ["total", answer.std],
    ["noise (aleatoric)", answer.aleatoric],
    ["of the model (epistemic)", answer.epistemic],
  ]) {
    const line = element("div");
    line.append(element("dt", name), bar(values[0] / top), element("dd", `± ${values.map(digits).join(", ± ")}`));
    part(".uncertainty").append(line);
  }
  for (const one of answer.samples) part(".samples").append(element("span", one.map(digits).join(", ")));
}

async function askImage(file) {
  if (file.size > 20e6) throw new Error("it is larger than 20 MB");
  const headers = { "Content-Type": file.type.startsWith("image/") ? file.type : "application/octet-stream" };
  const answer = await ask("/api/predict", { method: "POST", headers, body: file });
  const picture = URL.createObjectURL(file);
  show(answer, picture, Math.max(...model.size) <= 64 && file.size < 20000);
}

async function askImages(files) {
  const wrong = [];
  for (const file of [...files].slice(0, 50)) {
    say(`Asking about ${file.name ?? "the image"} …`);
    try {
      await askImage(file);
    } catch (error) {
      wrong.push(`${file.name ?? "The image"}: ${error.message}`);
    }
  }
  say(wrong.join(" · "), wrong.length > 0);
}

async function askRow(event) {
  event.preventDefault();
  const words = $("numbers").value.trim().split(/[\s,;]+/).filter(Boolean);
  const row = words.map(Number);
  const bad = words.find((word, i) => !Number.isFinite(row[i]));
  if (!words.length || bad !== undefined) {
    say(words.length ? `“${bad}” is not a number.` : "Type some numbers first.", true);
    return;
  }
  say("Asking …");
  try {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ row }) };
    show(await ask("/api/predict", options));
    say("");
  } catch (error) {
    say(error.message, true);
  }
}

function example(one, i) {
  const bytes = Uint8Array.from(atob(one.png), (c) => c.charCodeAt(0));
  const button = element("button");
  button.type = "button";
  const image = element("img");
  image.src = `data:image/png;base64,${one.png}`;
  image.alt = `test image ${i + 1}, labelled ${one.label}`;
  button.title = `labelled ${one.label}`;
  button.append(image);
  button.addEventListener("click", () => askImages([new Blob([bytes], { type: "image/png" })]));
  return button;
}

async function start() {
  model = await ask("/api/model");
  document.title = `${model.name} – atmc`;
  $("name").textContent = model.name;
  const samples = model.samples === 1 ? "one network" : `${model.samples} sampled networks`;
  if (model.takes === "image") {
    $("about").textContent = `${samples}, ${model.classes.length} classes, images of ${model.size.join(" × ")} pixels`;
    $("images").hidden = false;
    $("examples").append(...model.examples.map(example));
    $("tries").hidden = model.examples.length === 0;
  } else {
    const many = model.numbers === null ? "" : ` of ${model.numbers} numbers`;
    $("about").textContent = `${samples}, rows${many}, as the network was trained on (standardised, if it was)`;
    $("rows").hidden = false;
    $("numbers").placeholder = "0.5, -1.2, 3";
  }
}

const drop = $("drop");
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.remove("over");
  });
}
document.addEventListener("drop", (event) => {
  if (model?.takes === "image") askImages(event.dataTransfer.files);
});
$("file").addEventListener("change", (event) => {
  askImages(event.target.files).then(() => { event.target.value = ""; });
});
$("form").addEventListener("submit", askRow);
start().catch((error) => say(error.message, true));
