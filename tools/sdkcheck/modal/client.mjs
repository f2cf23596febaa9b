// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Runs calls of the vendor's client, one for each line of the input, and writes
// what each gave as one line. What a call keeps in `kept` the next ones see.

import { createInterface } from 'node:readline'
import * as modal from 'modal'

const options = { tokenId: 'ak-test', tokenSecret: 'as-test' }
const quiet = { debug() {}, info() {}, warn() {}, error() {} }
const fresh = (more) => new modal.ModalClient({ logger: quiet, ...options, ...more })
const client = fresh()
const kept = {}
const Call = Object.getPrototypeOf(async function () {}).constructor

async function all(of) {
  const found = []
  for await (const one of of) found.push(one)
  return found
}

async function run(sandbox, command, more) {
  const p = await sandbox.exec(command, more)
  const out = await p.stdout.readText()
  return [out, await p.wait()]
}

for await (const line of createInterface({ input: process.stdin })) {
  const answer = {}
  try {
    answer.value = (await new Call('client', 'kept', 'fresh', 'all', 'run', 'modal', JSON.parse(line))(client, kept, fresh, all, run, modal)) ?? null
  } catch (error) {
    answer.error = error.constructor.name
    answer.message = String(error.message)
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
process.exit(0)
