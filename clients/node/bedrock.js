/**
 * A client for Bedrock: conversations with LLM agents, over gRPC.
 *
 *     const bedrock = new Bedrock(); // finds the server of this machine, and its token
 *     const conversation = await bedrock.create({ workingDirectory: process.cwd() });
 *     for await (const event of await conversation.send('Which files are here?')) {
 *       if (event.event === 'textDelta') process.stdout.write(event.textDelta.text);
 *     } // it ends with the run; a tool call that needs approval is denied unless the loop or `onApproval` answers
 *
 * Requests, answers and events are the messages of protos/bedrock/v1, with fields in camelCase and enums as the names
 * of their values. `event.event` is the kind of an event: the name of the field that is set.
 */
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

import { contractOf, mistake, writtenOut } from './requests.js';
import { NoWay, proxyOf, settings } from './settings.js';
import { ClientTools, plainValue, struct, waitingCalls } from './tools.js';

export { ToolAnswer } from './tools.js';

const includeDirs = ['../../protos', '.'].map((folder) => fileURLToPath(new URL(folder, import.meta.url)));
const files = ['bedrock/v1/conversation_service.proto', 'bedrock/v1/catalog_service.proto', 'status.proto'];
const contract = protoLoader.loadSync(files, { includeDirs, longs: Number, enums: String, defaults: true, oneofs: true });
const types = contractOf(files, (file) => includeDirs.map((folder) => join(folder, file)).find(existsSync));
const { ConversationService, CatalogService } = grpc.loadPackageDefinition(contract).bedrock.v1;
const CHANNEL = { 'grpc.keepalive_time_ms': 30_000, 'grpc.max_reconnect_backoff_ms': 2_000 };

/** A connection to a server. */
export class Bedrock {
  #find;
  #found = {};
  #lost = true; // whether the server may be somewhere else by now
  #stubs = [];
  #metadata;

  /**
   * Defaults come from BEDROCK_ADDRESS, BEDROCK_TOKEN, BEDROCK_CA_FILE, BEDROCK_CERTIFICATE_FILE and
   * BEDROCK_KEY_FILE, or from the files of a server on
   * this machine, which are read again whenever a connection was lost. An address with https:// means TLS. `timeout`:
   * milliseconds for a call. `reconnectFor`: milliseconds after which a broken stream is abandoned.
   * `onDisconnect(error, milliseconds)` is called before each pause.
   */
  constructor(options = {}) {
    const { address, token, caFile, certificateFile, keyFile, ...others } = options;
    const { timeout = 30_000, reconnectFor = 300_000, onDisconnect = () => {}, ...rest } = others;
    for (const key of Object.keys(rest)) throw invalid(key, 'unknown option');
    this.#find = () => settings(address, token, { caFile, certificateFile, keyFile });
    Object.assign(this, { timeout, reconnectFor, onDisconnect });
    try {
      this.#connect();
    } catch (error) {
      if (error.reason !== 'SERVER_NOT_RUNNING') throw BedrockError.from(error); // which the first call tells
    }
  }

  close = () => this.#stubs.forEach((stub) => stub.close());

  /** Make a unary call of either service: `call('listModels', {})`. Throws BedrockError. */
  async call(method, request, timeout = this.timeout) {
    try {
      const stub = this.#stub(method, request);
      return await promisify(stub[method]).call(stub, request, this.#metadata, { deadline: Date.now() + timeout });
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /** Make a repeatable call, with retries for as long as a stream. Throws BedrockError. */
  async insist(method, request, timeout = this.timeout) {
    for (let failures = 0, since = Date.now(); ; failures += 1) {
      const began = Date.now();
      try {
        return await this.call(method, request, timeout);
      } catch (error) {
        if (Date.now() - began > this.timeout) [failures, since] = [0, Date.now()]; // the server was there until now
        if (error.code !== 'UNAVAILABLE' || Date.now() - since > this.reconnectFor) throw error;
        const delay = backoff(failures);
        this.onDisconnect(error, delay);
        await pause(delay);
      }
    }
  }

  /** All items that a call lists, page by page: `all('listTools', 'tools')`. */
  async *all(method, list, fields = {}) {
    const page = await this.call(method, fields);
    yield* page[list];
    if (page.nextPageToken) yield* this.all(method, list, { ...fields, pageToken: page.nextPageToken });
  }

  /** Open a gRPC stream, which can be iterated over and cancelled. Throws BedrockError. */
  stream(method, request) {
    try {
      const stream = this.#stub(method, request)[method](request, this.#metadata);
      return stream.on('error', (error) => this.#failed(error)); // iterating throws it; after a cancel nobody listens
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /** The stub that has a method, if the request is valid for it. */
  #stub(method, request) {
    const Stub = [ConversationService, CatalogService].find(({ service }) => methodOf(service, method));
    if (!Stub) throw invalid('method', `the contract has no method ${method}`);
    const [, name, rpc] = methodOf(Stub.service, method).path.split('/');
    const found = mistake(types.lookupService(name).methods[rpc].resolvedRequestType, request);
    if (found) throw invalid(found.path, found.text);
    if (this.#lost) this.#connect();
    return this.#stubs.find((each) => each instanceof Stub);
  }

  /** Find the server again; if its address is unchanged, gRPC reconnects by itself. */
  #connect() {
    const found = this.#find();
    this.#metadata = new grpc.Metadata();
    if (found.token) this.#metadata.set('authorization', `Bearer ${found.token}`);
    this.#lost = false;
    if (found.target === this.#found.target) return;
    this.close();
    const credentials = found.tls ? grpc.credentials.createSsl(found.ca, found.key, found.certificate) : grpc.credentials.createInsecure();
    const options = { ...CHANNEL, 'grpc.enable_http_proxy': proxyOf(found.target) ? 1 : 0 };
    this.#stubs = [ConversationService, CatalogService].map((Stub) => new Stub(found.target, credentials, options));
    this.#found = found;
  }

  /** The error for the end of a call or a stream. */
  #failed(error) {
    const failure = BedrockError.from(error);
    const proxy = failure.code === 'UNAVAILABLE' && !failure.reason && proxyOf(this.#found.target ?? 'unix:');
    if (proxy) failure.message += ` (through the proxy ${process.env[proxy].split('@').at(-1)} of ${proxy})`;
    this.#lost ||= ['UNAVAILABLE', 'UNAUTHENTICATED'].includes(failure.code);
    return failure;
  }

  /**
   * Create a conversation; the fields are those of Conversation. `instructions` may be a text, `tools` a list of names,
   * and `generation` can use words: `{ reasoningEffort: 'high' }`. With the `requestId` of an earlier call, returns its conversation.
   * `clientTools` that the mode does not offer to the agent are refused, unless `allowUnoffered` is true.
   *
   * @param {import('./requests.js').Choices & Record<string, unknown>} fields
   */
  async create({ requestId = randomUUID(), allowUnoffered = false, ...fields }) {
    const request = { conversation: writtenOut(fields), requestId, refuseUnofferedTools: !allowUnoffered };
    const { conversation } = await this.call('createConversation', request);
    return this.conversation(conversation.name);
  }

  /** The conversations, the latest changed first. `fields`: of ListConversationsRequest, like filter. */
  conversations = (fields = {}) => this.all('listConversations', 'conversations', fields);

  /**
   * Follow the list of conversations: those that exist, `caughtUp`, then every change. `fields`: of
   * WatchConversationsRequest, like filter. A broken connection ends it with an error: then start again.
   */
  async *watchConversations(fields = {}) {
    const stream = this.stream('watchConversations', fields);
    try {
      for await (const entry of stream) if (entry.event !== 'heartbeat') yield entry;
    } catch (error) {
      throw BedrockError.from(error);
    } finally {
      stream.cancel();
    }
  }

  /** The waiting approvals of all conversations; `conversation(…).resolve(approval, 'APPROVE')` answers. */
  approvals = () => this.all('listApprovals', 'approvals', { parent: 'conversations/-' });

  /** The open questions of running tools in all conversations; `conversation(…).answerQuestion(question, {…})` answers. */
  questions = () => this.all('listQuestions', 'questions', { parent: 'conversations/-' });

  /** The models that conversations can use. */
  models = () => this.all('listModels', 'models');

  /** The model `models/{id}`. */
  model = async (name) => (await this.call('getModel', { name })).model;

  /** The quotas of the token's principal, and the usage of each; for an operator, all principals' quotas. */
  quotas = async () => (await this.call('getQuotas', {})).quotas;

  /** The servers that share the database of this one, itself included; for operators. */
  nodes = () => this.all('listNodes', 'nodes');

  /** The conversation `conversations/{id or slug}`. Makes no call yet. */
  conversation = (name) => new Conversation(this, name);
}

/** Milliseconds that one call of WaitRequestCycle can wait. */
const LONGEST_WAIT = 600_000;

/** Milliseconds to wait after a number of failures. */
const backoff = (failures) => Math.min(100 * 2 ** failures, 5_000) * (0.8 + 0.4 * Math.random());

const methodOf = (service, method) => Object.values(service).find(({ originalName }) => originalName === method);

/** The error for a request that cannot be sent. */
const invalid = (field, text) =>
  new BedrockError(`${field}: ${text}`, { code: 'INVALID_ARGUMENT', reason: 'INVALID_ARGUMENT', fields: { [field]: text } });

/** The note about an unanswered approval, for the agent and all watchers. */
const DENIED_NOTE = 'Denied automatically: the program that sent the message continued without answering.';

/** One conversation. Holds its name and the functions of its tools; the other methods are calls. */
class Conversation {
  constructor(client, name) {
    const tools = new ClientTools(name, (method, request) => client.call(method, request), insist.bind(null, client));
    Object.assign(this, { client, name, tools });
  }

  /**
   * Give the agent a function as a tool: `conversation.tool({ name, description, inputSchema }, (input) => result)`.
   * More fields: `timeout` in milliseconds, `group`, `readOnly` (offered in restricted mode, too), `requiresApproval`,
   * `allowUnoffered` (otherwise the next message is an error if the mode does not offer the tool to the agent).
   * The function returns the result or a promise of it: a text, a JSON value, or a `ToolAnswer` with
   * images; the agent reads its exceptions as errors. Declared with the next message; calls are answered by runs
   * that are iterated over, and by `serveTools`.
   */
  tool(declaration, answer) {
    this.tools.add(declaration, answer);
    return this;
  }

  /** Answer the calls of all runs until the conversation is deleted, for messages of all clients. */
  async serveTools() {
    await this.tools.declare();
    for await (const event of this.events()) await this.tools.answer(waitingCalls(event) ?? []);
  }

  /**
   * Send a message; returns its run. `fields`: more of SendMessageRequest, like delivery: 'DELIVERY_STEER'. A question
   * of the run that is still open when its loop asks for the next event goes to `onApproval`: 'APPROVE', 'DENY', or a
   * function of the approval that returns true or false, or a promise of it. Without one it is denied, the next events
   * show it, and a warning is emitted. A tool's question (`questionChanged`) goes to `onQuestion`, a function of
   * the question that returns a value for each field of its form that is filled in, `{}` for an address that was
   * visited, or null to decline; without one it is declined. `waitForOthers: true` leaves everything to other clients.
   * `outputSchema`, a JSON Schema as a plain object, makes the run end with a matching value: its `output`.
   * `generation` sets how the model answers in this run, and overrides the conversation's settings; see `create`.
   *
   * @param {string} text
   * @param {Record<string, unknown> & { generation?: import('./requests.js').Generation, outputSchema?: object }} [fields]
   */
  async send(text, { onApproval, onQuestion, waitForOthers = false, outputSchema, ...fields } = {}) {
    if (!['undefined', 'function'].includes(typeof onApproval) && !['APPROVE', 'DENY'].includes(onApproval)) {
      throw invalid('onApproval', `${JSON.stringify(onApproval)} is not one of APPROVE, DENY, nor a function`);
    }
    if (!['undefined', 'function'].includes(typeof onQuestion)) {
      throw invalid('onQuestion', `${JSON.stringify(onQuestion)} is not a function`);
    }
    if (typeof waitForOthers !== 'boolean') throw invalid('waitForOthers', `${waitForOthers} is not true or false`);
    const schema = outputSchema ?? null;
    if (schema !== null && (typeof schema !== 'object' || Array.isArray(schema))) {
      throw invalid('outputSchema', `${JSON.stringify(schema)} is not a JSON Schema, an object`);
    }
    const request = { name: this.name, text, requestId: randomUUID(), ...writtenOut(fields) };
    if (schema !== null) request.outputSchema = struct(schema);
    await this.tools.declare();
    return new Run(this, await this.client.call('sendMessage', request), { onApproval, onQuestion, waitForOthers });
  }

  /**
   * Answer a question: `approval` of an event, and APPROVE or DENY. `rule`, one of `approval.suggestions`, decides later
   * calls likewise.
   */
  resolve = ({ name }, decision, note = '', rule = undefined) =>
    this.client.call('resolveApproval', {
      name,
      decision: `APPROVAL_DECISION_${decision}`,
      note,
      rule: rule && { ...rule, action: 'ACTION_UNSPECIFIED' },
    });

  /**
   * Answer a running tool's question: `questionChanged.question` of an event, and a value for each field of its
   * form that is filled in; none for an address: then it was visited. Returns the question afterwards.
   */
  answerQuestion = async ({ name }, content = undefined) => {
    const request = { name, requestId: randomUUID(), ...(content && { content: struct(content) }) };
    return (await this.client.call('answerQuestion', request)).question;
  };

  /** Decline a running tool's question; the tool decides how its call continues. */
  declineQuestion = async ({ name }) =>
    (await this.client.call('answerQuestion', { name, decline: true, requestId: randomUUID() })).question;

  /** The approval rules that apply here: the operator's, then its own. */
  async *approvalRules() {
    for (let pageToken = ''; ; ) {
      const page = await this.client.call('listApprovalRules', { parent: this.name, pageToken });
      yield* page.approvalRules;
      if (!(pageToken = page.nextPageToken)) return;
    }
  }

  /** Create a rule: `{ action: 'ACTION_ALLOW', commandPrefix: 'git status' }`. Returns it as stored. */
  async createApprovalRule(approvalRule) {
    return (await this.client.call('createApprovalRule', { parent: this.name, approvalRule })).approvalRule;
  }

  /** Revoke a rule. */
  deleteApprovalRule = ({ name }) => this.client.call('deleteApprovalRule', { name });

  /** Stop the run; never refused. `fields`: more of CancelConversationRequest, like discardQueued: true. */
  cancel = (fields = {}) => this.client.call('cancelConversation', { name: this.name, ...fields });

  /** The conversation as it is now. */
  get = async () => (await this.client.call('getConversation', { name: this.name })).conversation;

  /**
   * Change these fields of the conversation and no others; `generation` and `allowUnoffered` as for `create`. With an
   * `etag`, only if it is still current.
   */
  async update({ etag = '', allowUnoffered = false, ...fields }) {
    const paths = Object.keys(fields).map((field) => field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
    const conversation = { name: this.name, etag, ...writtenOut(fields) };
    const request = { conversation, updateMask: { paths }, refuseUnofferedTools: !allowUnoffered };
    return (await this.client.call('updateConversation', request)).conversation;
  }

  /** Delete the conversation. `fields`: more of DeleteConversationRequest, like force: true or etag. */
  delete = (fields = {}) => this.client.call('deleteConversation', { name: this.name, ...fields });

  /** The history, oldest message first. */
  messages = () => this.client.all('listMessages', 'messages', { parent: this.name });

  /** The request cycle of a run, by its name: `run.name`. `fields`: more of GetRequestCycleRequest, like view: 'VIEW_ROUNDS'. */
  cycle = async (name, fields = {}) => (await this.client.call('getRequestCycle', { name, ...fields })).requestCycle;

  /**
   * Wait for the end of a run without its events, and return its cycle. It answers none of the run's approvals or questions. `timeout`:
   * milliseconds after which the unfinished cycle is returned, without an `endTime`.
   */
  async waitForCycle(name, { timeout = Infinity, ...fields } = {}) {
    for (const until = Date.now() + timeout; ; ) {
      const wait = Math.min(Math.max(until - Date.now(), 0), LONGEST_WAIT);
      const request = { name, timeout: { seconds: Math.floor(wait / 1000), nanos: (wait % 1000) * 1e6 }, ...fields };
      const { requestCycle } = await this.client.insist('waitRequestCycle', request, wait + this.client.timeout);
      if (requestCycle.endTime || Date.now() >= until) return requestCycle;
    }
  }

  /**
   * Follow the conversation over broken connections and server restarts: every event exactly once. Text
   * deltas add up to the message that follows them, even if some were missed. Begins after the revision, or with a
   * snapshot; if the missed events are no longer stored, another snapshot follows.
   */
  async *events(afterRevision) {
    let cursor = new Cursor(this.name, afterRevision);
    for (let failures = 0, since; ; failures += 1) {
      let failure = new BedrockError('the server ended the stream', { code: 'UNAVAILABLE' });
      let stream;
      try {
        stream = this.client.stream('subscribe', cursor.request());
        for await (const { events } of stream) {
          failures = 0;
          for (const event of events) yield* cursor.take(event);
        }
      } catch (error) {
        failure = BedrockError.from(error);
      } finally {
        stream?.cancel();
      }
      if (cursor.deleted) return;
      since = failures ? since : Date.now();
      const gap = failure.reason === 'REVISION_TOO_OLD' || failure.fields?.after_revision;
      if (gap) cursor = new Cursor(this.name);
      else if (!failure.passing || Date.now() - since > this.client.reconnectFor) throw failure;
      const delay = backoff(failures);
      this.client.onDisconnect(failure, delay);
      await pause(delay);
    }
  }
}

/** The run of one message: an iterable of events that ends with the run. `stop` is then its runStopped. */
class Run {
  #onApproval;
  #onQuestion;
  #waitForOthers;

  constructor(conversation, { message, disposition, run, revision }, { onApproval, onQuestion, waitForOthers }) {
    Object.assign(this, { conversation, message, disposition, name: run, revision, stop: null });
    this.#onApproval = onApproval;
    this.#onQuestion = onQuestion;
    this.#waitForOthers = waitForOthers;
  }

  /** The value that matches the message's `outputSchema`, as JSON; null before the end and without a schema. */
  get output() {
    return this.stop?.output ? plainValue(this.stop.output) : null;
  }

  /** Whether the answer was cut off at its token limit. `stop.detail` can also be "refusal" or "empty". */
  get truncated() {
    return this.stop?.reason === 'STOP_REASON_COMPLETED' && this.stop.detail === 'max_tokens';
  }

  async *[Symbol.asyncIterator]() {
    const mine = (message) => message?.name === this.message.name;
    const open = new Map(); // the questions that were shown and, as far as is known, not decided
    const asked = new Map(); // what tools asked and, as far as is known, nobody answered
    let waiting = []; // the calls of clients' tools that were shown
    const note = ({ approval, decision }) =>
      decision === 'APPROVAL_DECISION_UNSPECIFIED' ? open.set(approval.name, approval) : open.delete(approval.name);
    for await (const event of this.conversation.events(this.revision)) {
      const { approvalChanged, messageAdded, questionChanged, queueChanged, runStopped, snapshot } = event;
      this.name = [messageAdded, queueChanged?.message].find(mine)?.requestCycle || this.name;
      if (this.name && runStopped?.requestCycle === this.name) this.stop = runStopped;
      yield event;
      const withdrawn = mine(queueChanged?.message) && queueChanged.fate === 'FATE_WITHDRAWN';
      const missed = snapshot && snapshot.conversation.state.run !== this.name && !snapshot.queue.some(({ message }) => mine(message));
      if (this.stop || withdrawn || missed || event.event === 'deleted') return;
      if (approvalChanged) note(approvalChanged);
      for (const approval of snapshot?.pendingApprovals ?? []) {
        if (open.has(approval.name)) continue;
        const shown = { approval, decision: 'APPROVAL_DECISION_UNSPECIFIED', note: '' };
        yield { event: 'approvalChanged', revision: 0, approvalChanged: shown };
        note(shown);
      }
      const { question } = questionChanged ?? {};
      if (question?.status === 'STATUS_PENDING') asked.set(question.name, question);
      else if (question) asked.delete(question.name);
      for (const pending of snapshot?.pendingQuestions ?? []) {
        if (asked.has(pending.name)) continue;
        yield { event: 'questionChanged', revision: 0, questionChanged: { question: pending } };
        asked.set(pending.name, pending);
      }
      waiting = waitingCalls(event) ?? waiting;
      await this.conversation.tools.answer(waiting);
      if (open.size && !this.#waitForOthers) await this.#settle(open);
      for (const each of this.name && !this.#waitForOthers ? asked.values() : []) {
        asked.delete(each.name);
        await this.#reply(each);
      }
    }
  }

  /** Decide about the approvals and questions that the loop did not answer. */
  async #settle(open) {
    const { conversation } = await insist(this.conversation.client, 'getConversation', { name: this.conversation.name });
    const pending = conversation?.state.awaitingApproval?.pending ?? [];
    for (const [name, approval] of open) {
      open.delete(name);
      if (pending.some((each) => each.name === name)) await this.#answer(approval);
    }
  }

  /** Answer a tool's question if it is still open; an answer that does not match its form declines it, and throws. */
  async #reply(question) {
    const { client } = this.conversation;
    const { name, url, mcpServer } = question;
    if (!(await insist(client, 'getQuestion', { name })).question) return;
    const content = this.#onQuestion ? await this.#onQuestion(question) : null;
    if (typeof content !== 'object' || Array.isArray(content)) {
      throw new TypeError(`onQuestion returned ${content}, neither an object nor null`);
    }
    if (!this.#onQuestion) {
      process.emitWarning(`the question from MCP server ${mcpServer} was declined because the loop did not answer; answer it there, or pass onQuestion`);
    }
    const decline = () => insist(client, 'answerQuestion', { name, decline: true, requestId: randomUUID() });
    if (content === null) return void (await decline());
    const filled = url ? {} : { content: struct(content) };
    try {
      await insist(client, 'answerQuestion', { name, requestId: randomUUID(), ...filled });
    } catch (error) {
      if (error.reason === 'INVALID_ARGUMENT') await decline();
      throw error;
    }
  }

  async #answer(approval) {
    const tool = approval.toolCall?.tool ?? 'request_mode_upgrade';
    if (!this.name) {
      const text = `the previous run is asking whether ${tool} may run; answer it first, or send with waitForOthers: true`;
      throw new BedrockError(text, { reason: 'APPROVAL_NEEDED' });
    }
    let [approved, note] = [this.#onApproval === 'APPROVE', ''];
    if (typeof this.#onApproval === 'function') approved = await this.#onApproval(approval);
    if (typeof approved !== 'boolean') throw new TypeError(`onApproval returned ${approved}, neither true nor false`);
    if (!this.#onApproval) {
      note = DENIED_NOTE;
      process.emitWarning(`${tool} was denied because the loop did not answer; answer it there, or pass onApproval`);
    }
    const decision = `APPROVAL_DECISION_${approved ? 'APPROVE' : 'DENY'}`;
    await insist(this.conversation.client, 'resolveApproval', { name: approval.name, decision, note });
  }
}

/** Make a call with retries for as long as a stream; returns nothing if another client was faster or the conversation is deleted. */
async function insist(client, method, request) {
  try {
    return await client.insist(method, request);
  } catch (error) {
    if (['UNKNOWN_OR_DECIDED', 'NOT_AWAITING_APPROVAL', 'NOT_FOUND'].includes(error.reason)) return {};
    throw error;
  }
}

/** The position of a watcher. The events that it passes on are those of an unbroken stream. */
class Cursor {
  #shown = new Map(); // how many code points were shown of each part of the run's slots
  #held = []; // what the open slot holds, until the stream has caught up

  constructor(name, afterRevision) {
    Object.assign(this, { name, afterRevision, deleted: false });
  }

  request = () => ({ name: this.name, afterRevision: this.afterRevision });

  /** The new part of an event. */
  *take(event) {
    const kind = event.event;
    if (kind === 'snapshot') {
      this.#held = event.snapshot.partial;
      if (this.afterRevision !== undefined) return;
      this.afterRevision = event.snapshot.conversation.revision;
    } else if (kind === 'caughtUp') {
      for (const delta of this.#held.splice(0)) yield* this.#fresh(delta);
      return;
    } else if (kind === 'textDelta' || kind === 'toolOutputDelta') {
      return yield* this.#fresh(event[kind], kind);
    } else if (event.revision) {
      if (event.revision <= this.afterRevision) return;
      this.afterRevision = event.revision;
      const { llmRequestId: id, attempt, content } = event.messageAdded ?? event.streamDiscarded ?? {};
      if (id && content) yield* this.#rest(event.messageAdded);
      this.#held = this.#held.filter((delta) => delta.llmRequestId !== id || delta.attempt !== attempt);
      if (event.runStopped) this.#shown.clear();
    }
    this.deleted = kind === 'deleted';
    if (kind && kind !== 'heartbeat') yield event;
  }

  /** The part of a delta that was not passed on yet. Offsets count code points, not UTF-16 units. */
  *#fresh(delta, kind = 'textDelta') {
    const part = [delta.llmRequestId ?? delta.toolUseId, delta.attempt, delta.reasoning].join();
    const points = [...delta.text];
    const offset = Math.max(delta.offset, this.#shown.get(part) ?? 0);
    if (offset >= delta.offset + points.length) return;
    this.#shown.set(part, delta.offset + points.length);
    const text = points.slice(offset - delta.offset).join('');
    yield { event: kind, revision: 0, [kind]: { ...delta, offset, text } };
  }

  /** The text of a model's message that no received delta contained. */
  *#rest({ llmRequestId, attempt, content }) {
    for (const block of ['reasoning', 'text']) {
      const text = content.map((each) => each[block] ?? '').join('');
      yield* this.#fresh({ llmRequestId, attempt, reasoning: block === 'reasoning', offset: 0, text });
    }
  }
}

/** An error of a call or of the connection. Programs decide on `reason`. */
export class BedrockError extends Error {
  /** `code` of gRPC; `reason`, empty if no server answered; the invalid `fields` of the request, with explanations. */
  constructor(message, { code = '', reason = '', metadata = {}, fields = {}, retryAfter = 0 }) {
    super(message);
    Object.assign(this, { name: 'BedrockError', code, reason, metadata, fields, retryAfter });
  }

  /** Whether a stream that ended with this error can be reopened. */
  get passing() {
    const codes = ['UNAVAILABLE', 'ABORTED', ...(this.reason ? [] : ['CANCELLED', 'UNKNOWN', 'INTERNAL'])];
    return codes.includes(this.code) || ['TOO_MANY_STREAMS', 'QUOTA_EXCEEDED'].includes(this.reason);
  }

  static from(error) {
    if (error instanceof NoWay) return new BedrockError(error.message, error);
    if (!error.metadata || error instanceof BedrockError) return error; // none of gRPC's
    const [packed] = error.metadata.get('grpc-status-details-bin');
    const facts = { code: grpc.status[error.code], fields: {} };
    for (const any of packed ? contract['google.rpc.Status'].deserialize(packed).details : []) {
      const detail = contract[any.type_url.split('/').at(-1)]?.deserialize(any.value);
      if (detail?.reason) Object.assign(facts, { reason: detail.reason, metadata: detail.metadata });
      if (detail?.retryDelay) facts.retryAfter = detail.retryDelay.seconds;
      for (const { field, description } of detail?.fieldViolations ?? []) facts.fields[field] = description;
    }
    return new BedrockError(error.details, facts);
  }
}
