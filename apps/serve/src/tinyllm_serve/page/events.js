// Yields the parsed events of a stream of server-sent events, up to [DONE].
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue; // a comment, or an empty line after an event
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice("data: ".length));
    }
  }
}
