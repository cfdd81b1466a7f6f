// A conversation with the server that this page comes from.

import { events } from "./events.js";

const element = (id) => document.getElementById(id);
const conversation = element("conversation");
const messages = [];
let key = sessionStorage.getItem("key") ?? "";
let model = null;
let running = null; // stops the answer under way

function headers() {
  const plain = { "Content-Type": "application/json" };
  return key ? { ...plain, Authorization: `Bearer ${key}` } : plain;
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (response.ok) return response;
  element("key").hidden = response.status !== 401;
  const told = await response.json().catch(() => null);
  throw new Error(told?.error?.message ?? `the server answered ${response.status}`);
}

function add(role, text = "") {
  const article = document.createElement("article");
  article.className = role;
  const shown = document.createElement("div");
  shown.className = "text";
  shown.textContent = text;
  article.append(shown);
  conversation.append(article);
  return { article, shown };
}

function thinking(article) {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Thinking";
  const shown = document.createElement("div");
  shown.className = "text";
  details.append(summary, shown);
  article.prepend(details);
  return shown;
}

// Text waits for the next frame: a page that lays itself out for every token of a long answer falls
// behind, and does not hear that it is to stop.
const waiting = new Map(); // what is shown, and the text that comes to its end
let frame = null;

function grow(shown, text) {
  waiting.set(shown, (waiting.get(shown) ?? "") + text);
  frame ??= requestAnimationFrame(write);
}

// Follows the text as long as the reader is at its end.
function write() {
  cancelAnimationFrame(frame);
  frame = null;
  const atEnd = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 40;
  for (const [shown, text] of waiting) shown.append(text);
  waiting.clear();
  if (atEnd) conversation.scrollTop = conversation.scrollHeight;
}

async function answer() {
  const { article, shown } = add("assistant");
  const figures = document.createElement("div");
  figures.className = "figures";
  article.append(figures);
  const said = { role: "assistant", content: "", reasoning_content: "" };
  const began = performance.now();
  let first = null, latest = began, tokens = 0, thoughts = null, ending = "";
  const show = (count) => {
    const rate = count > 1 && latest > first ? ((count - 1) / (latest - first)) * 1000 : 0;
    figures.textContent = `${count} tokens, ${rate.toFixed(1)} tokens/s${ending}`;
  };
  running = new AbortController();
  setBusy(true);
  try {
    const body = { model, messages, stream: true, stream_options: { include_usage: true } };
    const response = await ask("v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal: running.signal,
    });
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      const { content, reasoning_content: thought } = choice?.delta ?? {};
      if (choice?.finish_reason === "length") ending = ", cut off";
      if (content || thought) {
        latest = performance.now();
        first ??= latest;
        tokens += 1;
      }
      if (thought) {
        thoughts ??= thinking(article);
        grow(thoughts, thought);
        said.reasoning_content += thought;
      }
      if (content) {
        grow(shown, content);
        said.content += content;
      }
      if (first) show(tokens);
    }
  } catch (error) {
    if (error.name === "AbortError") {
      ending = ", stopped";
      show(tokens);
    } else {
      add("error", error.message);
    }
  }
  write();
  if (said.content || said.reasoning_content) messages.push(said);
  else messages.pop(); // the question has no answer: it was not put
  running = null;
  setBusy(false);
}

function setBusy(busy) {
  element("send").hidden = busy;
  element("stop").hidden = !busy;
}

async function greet() {
  try {
    model = (await (await ask("v1/models")).json()).data[0].id;
    element("model").textContent = model;
    element("key").hidden = true;
  } catch (error) {
    add("error", error.message);
  }
}

const form = element("ask");
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const question = form.question.value.trim();
  if (!question || running) return;
  form.question.value = "";
  messages.push({ role: "user", content: question });
  add("user", question);
  conversation.scrollTop = conversation.scrollHeight;
  answer();
});
form.question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
element("stop").addEventListener("click", () => running?.abort());
element("new").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  conversation.replaceChildren();
});
element("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = event.target.key.value.trim();
  sessionStorage.setItem("key", key);
  conversation.replaceChildren();
  greet();
});
greet();
