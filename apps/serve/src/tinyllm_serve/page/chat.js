// The chat page: one conversation with the server of the page.

import { events } from "./events.js";

const element = (id) => document.getElementById(id);
const conversation = element("conversation");
const messages = [];
let key = sessionStorage.getItem("key") ?? "";
let model = null;
let running = null; // AbortController of the running answer

function headers() {
  const plain = { "Content-Type": "application/json" };
  return key ? { ...plain, Authorization: `Bearer ${key}` } : plain;
}

async function request(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (response.ok) return response;
  element("key").hidden = response.status !== 401;
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `HTTP status ${response.status}`);
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

function addReasoning(article) {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Thinking";
  const shown = document.createElement("div");
  shown.className = "text";
  details.append(summary, shown);
  article.prepend(details);
  return shown;
}

// New text is appended once a frame. With a layout for every token of a long answer the page would
// fall behind, and react late to the Stop button.
const pending = new Map(); // element -> text to append
let frame = null;

function append(shown, text) {
  pending.set(shown, (pending.get(shown) ?? "") + text);
  frame ??= requestAnimationFrame(flush);
}

// Appends pending text, and scrolls if the end of the conversation was visible.
function flush() {
  cancelAnimationFrame(frame);
  frame = null;
  const atEnd = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 40;
  for (const [shown, text] of pending) shown.append(text);
  pending.clear();
  if (atEnd) conversation.scrollTop = conversation.scrollHeight;
}

async function answer() {
  const { article, shown } = add("assistant");
  const figures = document.createElement("div");
  figures.className = "figures";
  article.append(figures);
  const message = { role: "assistant", content: "", reasoning_content: "" };
  const began = performance.now();
  let first = null, latest = began, tokens = 0, reasoning = null, ending = "";
  const show = (count) => {
    const rate = count > 1 && latest > first ? ((count - 1) / (latest - first)) * 1000 : 0;
    figures.textContent = `${count} tokens, ${rate.toFixed(1)} tokens/s${ending}`;
  };
  const own = (running = new AbortController());
  setBusy(true);
  try {
    const body = { model, messages, stream: true, stream_options: { include_usage: true } };
    const response = await request("v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal: own.signal,
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
        reasoning ??= addReasoning(article);
        append(reasoning, thought);
        message.reasoning_content += thought;
      }
      if (content) {
        append(shown, content);
        message.content += content;
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
  flush();
  if (running !== own) return; // a new conversation has begun
  if (message.content || message.reasoning_content) messages.push(message);
  else messages.pop(); // a question without an answer is not sent again
  running = null;
  setBusy(false);
}

function setBusy(busy) {
  element("send").hidden = busy;
  element("stop").hidden = !busy;
}

async function loadModel() {
  try {
    model = (await (await request("v1/models")).json()).data[0].id;
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
  running = null;
  setBusy(false);
  messages.length = 0;
  conversation.replaceChildren();
});
element("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = event.target.key.value.trim();
  sessionStorage.setItem("key", key);
  conversation.replaceChildren();
  loadModel();
});
loadModel();
