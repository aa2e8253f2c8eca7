// @ts-check
// A tab's side of the stream that all tabs share.

import { Hub } from './hub.js';

/** @typedef {(line: any) => void} Take */

class Feed {
  constructor() {
    /** @type {Map<string, Set<Take>>} */
    this.followers = new Map();
    /** @type {Set<Take>} */
    this.watchers = new Set();
    /** @type {Set<(status: string, again: boolean) => void>} */
    this.listeners = new Set();
    this.status = 'connecting';
    /** @type {MessagePort | undefined} */
    this.port = undefined;
  }

  /** Start following; call once, after signing in. */
  open() {
    if (this.port) {
      this.port.postMessage({ retry: true });
      return;
    }
    this.port = shared() ?? alone();
    this.port.onmessage = ({ data }) => {
      if (data.status) this.now(data.status, data.again);
      for (const line of data.events ?? []) this.take(line);
    };
    const lock = `bedrock-tab-${crypto.randomUUID()}`;
    if (navigator.locks) {
      const port = this.port;
      navigator.locks.request(lock, () => {
        port.postMessage({ lock });
        return new Promise(() => {}); // held until this tab is gone
      });
    } else addEventListener('pagehide', () => this.port?.postMessage({ bye: true }));
    addEventListener('online', () => this.port?.postMessage({ retry: true }));
  }

  /** @param {string} status @param {boolean} again */
  now(status, again) {
    this.status = status;
    for (const each of this.listeners) each(status, again);
  }

  /** @param {any} line */
  take(line) {
    const takers = line.watch ? this.watchers : this.followers.get(line.name) ?? [];
    for (const take of takers) take(line);
  }

  /**
   * Follow a conversation from a revision on; events may be repeated.
   * @param {string} name @param {number} revision @param {Take} take
   * @returns {() => void} end it
   */
  follow(name, revision, take) {
    const takers = this.followers.get(name) ?? new Set();
    this.followers.set(name, takers.add(take));
    this.port?.postMessage({ follow: [name, revision] });
    return () => {
      takers.delete(take);
      if (takers.size) return;
      this.followers.delete(name);
      this.port?.postMessage({ unfollow: name });
    };
  }

  /** @param {Take} take changes of the list */
  watch(take) {
    this.watchers.add(take);
    return () => this.watchers.delete(take);
  }

  /** @param {(status: string, again: boolean) => void} listen `again`: after a loss, in which changes of the list were missed */
  onStatus(listen) {
    this.listeners.add(listen);
    return () => this.listeners.delete(listen);
  }
}

function shared() {
  if (typeof SharedWorker === 'undefined') return undefined;
  const types = /** @type {any} */ (globalThis).trustedTypes;
  const policy = types?.createPolicy('worker', { createScriptURL: () => '/console/worker.js' });
  const url = policy ? policy.createScriptURL('') : '/console/worker.js';
  const { port } = new SharedWorker(url, { type: 'module', name: 'bedrock' });
  return port;
}

function alone() {
  const { port1, port2 } = new MessageChannel();
  new Hub().connect(port1);
  return port2;
}

export const feed = new Feed();
