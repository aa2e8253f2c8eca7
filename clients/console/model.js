// @ts-check
// The state of one conversation: a page of its history and the later events, applied in order. No event is
// applied twice, whatever the stream repeats after a reconnection.

import { get, path } from './api.js';
import { feed } from './feed.js';

const PAGE = 60, OLDER = 200;
const LOGGED = 5_000;

/** A text that grows by pieces, each with its offset in code points. */
class Growing {
  text = '';
  points = 0;

  /** @param {number} offset @param {string} piece */
  add(offset, piece) {
    const fresh = offset < this.points ? [...piece].slice(this.points - offset).join('') : piece;
    this.text += fresh;
    this.points += fresh.length - (fresh.match(/[\ud800-\udbff]/g)?.length ?? 0);
  }
}

/** @typedef {{id: string, attempt: number, text: Growing, reasoning: Growing}} Slot */

export class Conversation {
  /** @param {string} name @param {(what: Set<string>) => void} changed gets the kinds of what has changed */
  constructor(name, changed) {
    this.name = name;
    this.changed = changed;
    /** @type {any} */
    this.info = undefined;
    /** @type {any[]} */
    this.messages = [];
    this.revision = 0;
    this.older = '';
    this.deleted = false;
    /** @type {Map<string, Slot>} */
    this.slots = new Map();
    /** Output of running tools, by call. @type {Map<string, {attempt: number, output: Growing}>} */
    this.outputs = new Map();
    /** @type {Map<string, any>} */
    this.results = new Map();
    /** @type {Map<string, any>} */
    this.reaped = new Map();
    /** @type {Map<string, any>} */
    this.queue = new Map();
    /** @type {Map<string, any>} */
    this.approvals = new Map();
    /** @type {Map<string, any>} */
    this.questions = new Map();
    /** @type {Map<string, any>} */
    this.clientCalls = new Map();
    /** How runs ended. @type {Map<string, any>} */
    this.stops = new Map();
    /** @type {any} */
    this.retrying = undefined;
    /** @type {any} */
    this.subAgents = undefined;
    /** The durable events since the page was opened. @type {any[]} */
    this.log = [];
    this.end = () => {};
  }

  get state() {
    return this.info?.state ?? {};
  }

  get busy() {
    return Boolean(this.state.busy);
  }

  /** Read the conversation and the end of its history, and follow it from there. @param {AbortSignal} [signal] */
  async open(signal) {
    const [{ conversation }, page] = await Promise.all([
      get(path(this.name), {}, signal),
      get(`${path(this.name)}/messages`, { pageSize: PAGE, descending: true }, signal),
    ]);
    this.info = conversation;
    this.name = conversation.name;
    this.messages = [];
    this.add((page.messages ?? []).reverse());
    this.older = page.nextPageToken ?? '';
    this.revision = Number(page.revision ?? 0);
    this.end();
    this.end = feed.follow(this.name, this.revision, (line) => this.take(line));
    this.changed(new Set(['all']));
  }

  close() {
    this.end();
  }

  /** Read the page of messages before the loaded ones. */
  async readOlder() {
    if (!this.older) return 0;
    const page = await get(`${path(this.name)}/messages`, { pageSize: OLDER, descending: true, pageToken: this.older });
    this.older = page.nextPageToken ?? '';
    const found = (page.messages ?? []).reverse();
    this.add(found);
    return found.length;
  }

  /** @param {any[]} found */
  add(found) {
    const { messages } = this, last = Number(messages.at(-1)?.sequence ?? 0), first = Number(messages[0]?.sequence ?? Infinity);
    const fresh = found.filter((each) => Number(each.sequence) > last || Number(each.sequence) < first);
    for (const message of fresh)
      for (const block of message.content ?? []) if (block.toolResult) this.results.set(block.toolResult.toolUseId, block.toolResult);
    if (fresh.length) this.messages = Number(fresh[0].sequence) > last ? [...messages, ...fresh] : [...fresh, ...messages];
  }

  /** @param {any} line */
  take(line) {
    if (line.error) {
      if (line.error.code === 404) this.deleted = true;
      else this.open().catch(() => {}); // too old, or a stream that the server has ended: begin with what is there now
      this.changed(new Set(['all']));
      return;
    }
    if (!line.event) return;
    const what = new Set(this.fold(line.event));
    if (what.size) this.changed(what);
  }

  /** @param {any} event @returns {string[]} what it changes */
  fold(event) {
    const revision = Number(event.revision ?? 0);
    if (revision) {
      if (revision <= this.revision) return [];
      this.revision = revision;
      this.log.push(event);
      if (this.log.length > LOGGED) this.log.splice(0, LOGGED / 10);
    }
    if (event.textDelta) return this.text(event.textDelta);
    if (event.toolOutputDelta) return this.output(event.toolOutputDelta);
    if (event.messageAdded) return this.message(event.messageAdded);
    if (event.stateChanged) {
      const { state } = event.stateChanged;
      this.info = { ...this.info, state };
      if (state.llmRequesting?.phase !== 'PHASE_BACKOFF') this.retrying = undefined;
      if (!state.awaitingSubAgents) this.subAgents = undefined;
      this.waiting(state);
      return ['state'];
    }
    if (event.conversationUpdated) {
      this.info = { ...event.conversationUpdated, state: this.state };
      return ['info'];
    }
    if (event.snapshot) return this.snapshot(event.snapshot);
    if (event.queueChanged) {
      const { message, fate } = event.queueChanged;
      if (fate === 'FATE_QUEUED') this.queue.set(message.name, event.queueChanged);
      else this.queue.delete(message.name);
      return ['queue'];
    }
    if (event.approvalChanged) {
      const { approval, decision } = event.approvalChanged;
      if (decision) this.approvals.delete(approval.name);
      else this.approvals.set(approval.name, approval);
      return ['waiting'];
    }
    if (event.questionChanged) {
      const { question } = event.questionChanged;
      if (question.status === 'STATUS_PENDING') this.questions.set(question.name, question);
      else this.questions.delete(question.name);
      return ['waiting'];
    }
    if (event.clientToolCallChanged) {
      const { call, status } = event.clientToolCallChanged;
      if (status === 'STATUS_PENDING') this.clientCalls.set(call.toolUseId, event.clientToolCallChanged);
      else this.clientCalls.delete(call.toolUseId);
      return ['waiting'];
    }
    if (event.streamDiscarded) {
      this.slots.delete(slotKey(event.streamDiscarded));
      return ['slots'];
    }
    if (event.retrying) {
      this.retrying = event.retrying;
      if (event.retrying.toolUseId) this.outputs.delete(event.retrying.toolUseId);
      return ['state'];
    }
    if (event.runStopped) {
      this.stops.set(event.runStopped.requestCycle, event.runStopped);
      this.slots.clear();
      return ['stops', 'slots'];
    }
    if (event.toolTreeReaped) {
      this.reaped.set(event.toolTreeReaped.toolUseId, event.toolTreeReaped);
      return ['results'];
    }
    if (event.subAgentsChanged) {
      this.subAgents = event.subAgentsChanged;
      return ['state'];
    }
    if (event.deleted) {
      this.deleted = true;
      return ['all'];
    }
    return revision ? ['log'] : [];
  }

  /** @param {any} piece @returns {string[]} */
  text(piece) {
    const key = slotKey(piece);
    const slot = this.slots.get(key) ?? { id: piece.llmRequestId, attempt: piece.attempt ?? 1, text: new Growing(), reasoning: new Growing() };
    slot[piece.reasoning ? 'reasoning' : 'text'].add(Number(piece.offset ?? 0), piece.text ?? '');
    this.slots.set(key, slot);
    return ['slots'];
  }

  /** @param {any} piece @returns {string[]} */
  output(piece) {
    let found = this.outputs.get(piece.toolUseId);
    if (!found || found.attempt !== piece.attempt) {
      found = { attempt: piece.attempt, output: new Growing() };
      this.outputs.set(piece.toolUseId, found);
    }
    found.output.add(Number(piece.offset ?? 0), piece.text ?? '');
    return ['outputs'];
  }

  /** @param {any} message @returns {string[]} */
  message(message) {
    if (message.llmRequestId) this.slots.delete(slotKey(message));
    for (const block of message.content ?? []) if (block.toolResult) this.outputs.delete(block.toolResult.toolUseId);
    this.add([message]);
    if (message.usage && this.info) this.info.lastUsage = message.usage;
    return ['messages', 'slots'];
  }

  /** @param {any} snapshot @returns {string[]} */
  snapshot(snapshot) {
    if (Number(snapshot.conversation.revision ?? 0) >= this.revision) {
      this.info = snapshot.conversation;
      this.queue = new Map((snapshot.queue ?? []).map((/** @type {any} */ each) => [each.message.name, each]));
      this.approvals = new Map((snapshot.pendingApprovals ?? []).map((/** @type {any} */ each) => [each.name, each]));
      this.questions = new Map((snapshot.pendingQuestions ?? []).map((/** @type {any} */ each) => [each.name, each]));
      this.clientCalls = new Map((snapshot.pendingClientToolCalls ?? []).map((/** @type {any} */ each) => [each.call.toolUseId, each]));
      this.subAgents = snapshot.subAgents;
    }
    this.slots.clear();
    for (const piece of snapshot.partial ?? []) this.text(piece);
    return ['all'];
  }

  /** Drop requests that a state no longer waits for. @param {any} state */
  waiting(state) {
    if (!state.awaitingApproval) this.approvals.clear();
    if (!state.toolExecuting) {
      this.questions.clear();
      this.clientCalls.clear();
    }
  }
}

/** @param {{llmRequestId: string, attempt?: number}} of */
const slotKey = (of) => `${of.llmRequestId}/${of.attempt ?? 1}`;
