// @ts-check
// Data about the server and the signed-in caller.

import { get } from './api.js';

class Server {
  constructor() {
    /** @type {any} */
    this.info = {};
    /** @type {any[]} */
    this.models = [];
  }

  /** Raises ApiError; with status 401, no caller is signed in. */
  async read() {
    [this.info, { models: this.models = [] }] = await Promise.all([get('serverInfo'), get('models', { pageSize: 200 })]);
  }

  get readOnly() {
    return this.info.role === 'reader';
  }

  get operator() {
    return this.info.role === 'operator';
  }

  /** @param {string} name */
  model(name) {
    return this.models.find((each) => each.name === name);
  }

  get scripted() {
    return this.model(this.info.defaultModel)?.protocol === 'PROTOCOL_DEMO';
  }
}

export const server = new Server();
