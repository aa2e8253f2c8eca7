/** Functions of a program that answer the calls of its agent's tools. */
import { isDeepStrictEqual } from 'node:util';

import { BedrockError } from './bedrock.js';

const SCHEMA = { type: 'object', properties: {} };
const MINUTES = 5;

/** The return value of a tool's function if the result has images: each with `mediaType` and `data`, a Buffer. */
export class ToolAnswer {
  constructor(value = '', images = []) {
    Object.assign(this, { value, images });
  }
}

/** The functions for the tools of one conversation, which its runs and `serveTools` share. */
export class ClientTools {
  #name;
  #call;
  #insist;
  #functions = new Map(); // by the name of the tool: what was declared, and the function
  #taken = new Set(); // the calls that were seen to, by their ids: none is answered twice by one program
  #declared = true;

  /** `call` makes a call of the server; `insist` repeats it while the connection is broken, and never refuses. */
  constructor(name, call, insist) {
    this.#name = name;
    this.#call = call;
    this.#insist = insist;
  }

  /** Add a tool, which the next message declares. */
  add({ inputSchema = SCHEMA, timeout = MINUTES * 60_000, group = 'TOOL_GROUP_OTHER', allowUnoffered = false, ...fields }, answer) {
    if (typeof answer !== 'function') throw new TypeError('a tool needs a function that answers its calls');
    const duration = { seconds: Math.floor(timeout / 1000), nanos: (timeout % 1000) * 1_000_000 };
    const declaration = { ...fields, inputSchema: struct(inputSchema), timeout: duration, group };
    this.#functions.set(fields.name, { declaration, answer, allowUnoffered });
    this.#declared = false;
  }

  /**
   * Declare the added tools, unless the conversation already has them. Other client tools stay. Throws
   * TOOL_NOT_OFFERED if the mode does not offer one of them to the agent, and `allowUnoffered` is not set for it.
   */
  async declare() {
    if (this.#declared) return;
    let { conversation } = await this.#call('getConversation', { name: this.#name });
    const wanted = new Map(conversation.clientTools.map((tool) => [tool.name, tool]));
    for (const [name, { declaration }] of this.#functions) wanted.set(name, declaration);
    const clientTools = [...wanted.values()];
    if (!isDeepStrictEqual(clientTools.map(shown), conversation.clientTools.map(shown))) {
      const updateMask = { paths: ['client_tools'] };
      const update = { conversation: { name: this.#name, clientTools }, updateMask };
      ({ conversation } = await this.#call('updateConversation', update));
    }
    const missing = conversation.unofferedTools.filter(({ name }) => this.#functions.get(name)?.allowUnoffered === false);
    if (missing.length) {
      const facts = { code: 'FAILED_PRECONDITION', reason: 'TOOL_NOT_OFFERED' };
      throw new BedrockError(`${missing.map(({ name }) => name).join(', ')} would not be offered: ${missing[0].text}`, facts);
    }
    this.#declared = true;
  }

  /** Answer the open calls that have a function here. */
  async answer(calls) {
    for (const call of calls) {
      const tool = this.#functions.get(call.tool);
      if (!tool || this.#taken.has(call.toolUseId)) continue;
      this.#taken.add(call.toolUseId);
      try {
        if (await this.#waits(call)) await this.#submit(call, await resultOf(call, tool.answer));
      } catch (error) {
        this.#taken.delete(call.toolUseId); // whoever sees the call next answers it
        throw error;
      }
    }
  }

  /** Whether a call still waits: an event may be old, and another client may have been faster. */
  async #waits({ toolUseId }) {
    const { conversation } = await this.#insist('getConversation', { name: this.#name });
    const running = conversation?.state.toolExecuting;
    return Boolean(running?.deadline) && running.current.toolUseId === toolUseId;
  }

  /** Send an answer. An answer that is refused or too long to send is replaced by an error that says so. */
  async #submit({ toolUseId }, result) {
    const name = `${this.#name}/toolCalls/${toolUseId}`;
    try {
      await this.#insist('submitToolResult', { name, ...result });
    } catch (error) {
      const tooLarge = error.code === 'RESOURCE_EXHAUSTED' && !error.reason; // for a request, says gRPC
      if (error.code !== 'INVALID_ARGUMENT' && !tooLarge) throw error;
      await this.#insist('submitToolResult', { name, error: `The result was rejected: ${error.message}` });
    }
  }
}

/** The calls that wait for an answer after an event; null if it is about no calls. */
export function waitingCalls({ clientToolCallChanged, snapshot }) {
  const told = clientToolCallChanged ? [clientToolCallChanged] : snapshot?.pendingClientToolCalls;
  return told ? told.filter(({ status }) => status === 'STATUS_PENDING').map(({ call }) => call) : null;
}

/** A function's return value or exception, as fields of SubmitToolResultRequest. */
async function resultOf({ rawInput, input }, answer) {
  try {
    const value = await answer(rawInput ? JSON.parse(rawInput) : plain(input));
    const { value: output, images } = value instanceof ToolAnswer ? value : new ToolAnswer(value);
    return { output: typeof output === 'string' ? output : JSON.stringify(output) ?? '', images };
  } catch (error) {
    return { error: String(error) || 'the tool failed' };
  }
}

/** A declaration with plain values, to be compared. */
const shown = ({ name, description = '', inputSchema, group, timeout, readOnly = false, requiresApproval = false }) => [
  name, description, plain(inputSchema), group, timeout?.seconds, timeout?.nanos, readOnly, requiresApproval,
];

/** A plain object as a google.protobuf.Struct. */
export const struct = (object) => ({
  fields: Object.fromEntries(
    Object.entries(object).filter(([, value]) => value !== undefined).map(([key, value]) => [key, valueOf(value)]),
  ),
});

function valueOf(value) {
  if (value === null) return { nullValue: 'NULL_VALUE' };
  if (Array.isArray(value)) return { listValue: { values: value.map(valueOf) } };
  const kinds = { number: 'numberValue', string: 'stringValue', boolean: 'boolValue' };
  return typeof value === 'object' ? { structValue: struct(value) } : { [kinds[typeof value]]: value };
}

/** A google.protobuf.Struct as a plain object. */
export const plain = (given) =>
  Object.fromEntries(Object.entries(given?.fields ?? {}).map(([key, value]) => [key, plainValue(value)]));

/** A google.protobuf.Value as a plain value. */
export function plainValue(value) {
  if (value.kind === 'nullValue' || 'nullValue' in value) return null;
  if (value.listValue) return value.listValue.values.map(plainValue);
  return value.structValue ? plain(value.structValue) : value.numberValue ?? value.stringValue ?? value.boolValue;
}
