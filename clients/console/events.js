// @ts-check
// A conversation's durable events, for views of the past; events before the page was opened are read once.

import { get, lines, path } from './api.js';
import { ms } from './format.js';

const MOST = 4_000, MOST_PAGES = 20;

/** @type {WeakMap<import('./model.js').Conversation, Promise<{events: any[], cut: boolean}>>} */
const read = new WeakMap();

/**
 * All known events, in order; `cut` if there are earlier ones.
 * @param {import('./model.js').Conversation} conversation
 */
export async function history(conversation) {
  const known = read.get(conversation) ?? before(conversation);
  read.set(conversation, known);
  const { events, cut } = await known;
  const last = Number(events.at(-1)?.revision ?? 0);
  return { events: [...events, ...conversation.log.filter((each) => Number(each.revision) > last)], cut };
}

/** @param {import('./model.js').Conversation} conversation */
async function before(conversation) {
  const after = Math.max(0, conversation.revision - MOST);
  try {
    return { events: await passed(conversation.name, after), cut: after > 0 };
  } catch {
    try { // the first events were pruned, or are those of the conversation that was forked
      return { events: await passed(conversation.name, Math.max(0, conversation.revision - 200)), cut: true };
    } catch {
      return { events: [], cut: true };
    }
  }
}

/** The durable events of a conversation after a revision. @param {string} name @param {number} after @returns {Promise<any[]>} */
export async function passed(name, after) {
  const stop = new AbortController();
  /** @type {any[]} */
  const found = [];
  const response = await fetch(`/v1/${path(name)}:subscribe?afterRevision=${after}&omitDeltas=true`, { headers: { Accept: 'application/x-ndjson' }, signal: stop.signal });
  if (!response.ok) throw new Error('these events are no longer stored');
  try {
    await lines(response, (event) => {
      if (event.revision) found.push(event);
      if (event.caughtUp) stop.abort();
    });
  } catch (error) {
    if (/** @type {any} */ (error).name !== 'AbortError') throw error;
  }
  return found;
}

/**
 * How long each attempt of a model request waited for a slot, in ms, by the request and the number of the attempt. Only the
 * log has this; it is read back to the time `since`.
 * @param {string} name @param {number} since @returns {Promise<Map<string, number>>}
 */
export async function slotWaits(name, since) {
  /** @type {Map<string, number>} */
  const found = new Map();
  let token = '';
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const { transitions = [], nextPageToken } = await get(`${path(name)}/transitions`, { pageSize: 100, descending: true, pageToken: token });
    for (const { eventType, eventJson } of transitions) {
      if (eventType !== 'llm_stream_started' || !eventJson) continue;
      const { request_id: request, attempt, waited_ms: waited = 0 } = JSON.parse(eventJson);
      found.set(`${request} ${attempt}`, waited);
    }
    token = nextPageToken ?? '';
    if (!token || ms(transitions.at(-1)?.time) < since) break;
  }
  return found;
}
