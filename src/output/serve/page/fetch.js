// Asks the agent. The browser keeps a document until the agent says by its tag that there is another one.

/** An agent that has not answered for so long stands still. */
const PATIENCE_MS = 10000;

/** The JSON of a path of this agent; an error has the agent's sentence. */
export async function getJson(path, patience = PATIENCE_MS) {
  const response = await fetch(path, { cache: "no-cache", credentials: "same-origin", signal: AbortSignal.timeout(patience) }).catch((error) => {
    throw new Error(error.name === "TimeoutError" ? "the agent does not answer" : "the agent cannot be reached");
  });
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error ?? `${path}: status ${response.status}`);
}
