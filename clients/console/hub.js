// @ts-check
// One stream for all tabs, because a browser opens at most six connections to a server. It carries the list's changes
// and the events of each visible conversation. To follow others, a new stream is opened beside the old one.

import { failure, lines } from './api.js';

/** @typedef {{follows: Map<string, number>}} Tab `follows`: the last revision that the tab has seen, by conversation */

const FLUSH_MS = 16;
const SILENT_MS = 45_000; // the server says something every 15 s
const FIRST_PAUSE_MS = 300, LONGEST_PAUSE_MS = 5_000;

export class Hub {
  constructor() {
    /** @type {Map<MessagePort, Tab>} */
    this.tabs = new Map();
    /** The last received revision of each conversation. @type {Map<string, number>} */
    this.seen = new Map();
    this.status = 'connecting';
    /** @type {AbortController | undefined} */
    this.stream = undefined;
    this.pause = FIRST_PAUSE_MS;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.starting = undefined;
    /** @type {any[]} */
    this.outgoing = [];
    this.lost = false;
    new BroadcastChannel('bedrock-session').onmessage = () => this.stream && this.start(0);
  }

  /** @param {MessagePort} port the tab at the other end */
  connect(port) {
    this.tabs.set(port, { follows: new Map() });
    port.onmessage = ({ data }) => this.told(port, data);
    port.postMessage({ status: this.status });
    if (!this.stream) this.start(0);
  }

  /** @param {MessagePort} port @param {any} data */
  told(port, data) {
    const tab = this.tabs.get(port);
    if (!tab) return;
    if (data.lock) navigator.locks?.request(data.lock, () => this.leave(port)); // free once the tab is gone
    if (data.bye) this.leave(port);
    if (data.retry) {
      this.pause = FIRST_PAUSE_MS;
      this.start(0);
    }
    if (data.follow) {
      const [name, revision] = data.follow;
      tab.follows.set(name, revision);
      this.seen.set(name, Math.min(revision, this.seen.get(name) ?? revision));
      this.start(20);
    }
    if (data.unfollow) tab.follows.delete(data.unfollow);
  }

  /** @param {MessagePort} port */
  leave(port) {
    this.tabs.delete(port);
    if (this.tabs.size) return;
    clearTimeout(this.starting);
    this.stream?.abort();
    this.stream = undefined;
  }

  /** @param {number} ms */
  start(ms) {
    clearTimeout(this.starting);
    this.starting = setTimeout(() => this.run(), ms);
  }

  async run() {
    const old = this.stream, mine = new AbortController();
    this.stream = mine;
    const names = new Set([...this.tabs.values()].flatMap((tab) => [...tab.follows.keys()]));
    for (const name of this.seen.keys()) if (!names.has(name)) this.seen.delete(name);
    const subscriptions = [...names].map((name) => ({ name, afterRevision: String(this.seen.get(name) ?? 0) }));
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let silence;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => mine.abort(), SILENT_MS);
    };
    try {
      heard();
      const response = await fetch('/v1/conversations:subscribe', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', Accept: 'application/x-ndjson' },
        body: JSON.stringify({ subscriptions, watch: { changesOnly: true, includeSubAgents: true } }),
        signal: mine.signal,
      });
      if (!response.ok) throw await failure(response);
      await lines(response, (line) => {
        heard();
        if (line.watch && line.reset) {
          old?.abort(); // only now: nothing that changes between the two streams is missed
          this.say('live');
          this.pause = FIRST_PAUSE_MS;
        } else if (this.stream === mine) this.take(line);
      });
    } catch (error) {
      if (/** @type {any} */ (error).status === 401) {
        if (this.stream === mine) this.stream = undefined;
        old?.abort();
        return this.say('signed out');
      }
    } finally {
      clearTimeout(silence);
    }
    if (this.stream !== mine) return;
    old?.abort();
    this.lost = true;
    this.say('lost');
    this.start(this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
  }

  /** @param {any} line */
  take(line) {
    const revision = Number(line.event?.revision ?? 0);
    if (revision) this.seen.set(line.name, Math.max(revision, this.seen.get(line.name) ?? 0));
    const last = this.outgoing.at(-1), piece = line.event?.textDelta, before = last?.event?.textDelta;
    if (piece && before && last.name === line.name && before.llmRequestId === piece.llmRequestId &&
        before.attempt === piece.attempt && before.reasoning === piece.reasoning) {
      before.text += piece.text;
      return;
    }
    if (!this.outgoing.length) setTimeout(() => this.flush(), FLUSH_MS);
    this.outgoing.push(line);
  }

  flush() {
    const batch = this.outgoing;
    this.outgoing = [];
    for (const [port, tab] of this.tabs) {
      const theirs = batch.filter((line) => line.watch || tab.follows.has(line.name));
      if (theirs.length) port.postMessage({ events: theirs });
    }
  }

  /** @param {string} status */
  say(status) {
    const again = status === 'live' && this.lost;
    if (status === 'live') this.lost = false;
    if (status === this.status && !again) return;
    this.status = status;
    for (const port of this.tabs.keys()) port.postMessage({ status, again });
  }
}
