// @ts-check
// Calls of the public HTTP API. The browser sends the session's cookie by itself; nothing here knows a token.

/** A refused call, or an unreachable server: then `status` is 0. */
export class ApiError extends Error {
  /** @param {number} status @param {string} text @param {string} reason */
  constructor(status, text, reason = '') {
    super(text);
    this.status = status;
    this.reason = reason;
  }
}

/** @type {() => void} */
let signedOut = () => {};

/** @param {() => void} then called when the session is over */
export const onSignedOut = (then) => { signedOut = then; };

/**
 * @param {string} method
 * @param {string} path beneath /v1/
 * @param {any} [body]
 * @param {{key?: string, signal?: AbortSignal}} [options] `key` makes a repeated call the same call
 * @returns {Promise<any>}
 */
export async function call(method, path, body, { key, signal } = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: 'application/json' };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (key) headers['Idempotency-Key'] = key;
  let response;
  try {
    response = await fetch(`/v1/${path}`, { method, headers, body: body === undefined ? null : JSON.stringify(body), signal: signal ?? null });
  } catch (error) {
    if (/** @type {any} */ (error).name === 'AbortError') throw error;
    throw new ApiError(0, 'the server cannot be reached');
  }
  if (response.ok) return response.json();
  const error = await failure(response);
  if (error.status === 401) signedOut();
  throw error;
}

/** @param {Response} response @returns {Promise<ApiError>} */
export async function failure(response) {
  try {
    const { error } = await response.json();
    const info = (error.details ?? []).find((/** @type {any} */ each) => each.reason);
    return new ApiError(response.status, error.message, info?.reason);
  } catch {
    return new ApiError(response.status, `the server answered with status ${response.status}`);
  }
}

/** @param {string} path @param {Record<string, any>} [parameters] */
export function get(path, parameters = {}, signal = /** @type {AbortSignal | undefined} */ (undefined)) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== '' && value !== undefined) query.set(name, String(value));
  const text = query.toString();
  return call('GET', text ? `${path}?${text}` : path, undefined, signal ? { signal } : {});
}

/** @param {string} path @param {any} [body] */
export const post = (path, body = {}) => call('POST', path, body, { key: crypto.randomUUID() });

/** Tells the other tabs, and the stream that they share, that another person may be signed in now. */
export const session = new BroadcastChannel('bedrock-session');

/** @param {{token?: string, link?: string}} by */
export async function signIn(by) {
  const response = await fetch('/console/session', {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(by),
  });
  if (!response.ok) throw await failure(response);
  session.postMessage('in');
}

export async function signOut() {
  await fetch('/console/session', { method: 'DELETE' });
  session.postMessage('out');
}

/**
 * Read lines of JSON until a response ends.
 * @param {Response} response
 * @param {(line: any) => void} take
 */
export async function lines(response, take) {
  const reader = /** @type {any} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (let piece; !(piece = await reader.read()).done;) {
    const found = (rest + piece.value).split('\n');
    rest = found.pop() ?? '';
    for (const line of found) if (line) take(JSON.parse(line));
  }
}

/** Escape a name for a path. @param {string} name */
export const path = (name) => name.split('/').map(encodeURIComponent).join('/');
