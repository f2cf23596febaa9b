// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Runs calls of the vendor's client, one for each line of the input, and writes
// what each gave as one line. What a call keeps in `kept` the next ones see.

import { createInterface } from 'node:readline'
import * as v2 from 'e2b'
import * as v1 from 'e2b-v1'

const kept = {}
const Call = Object.getPrototypeOf(async function () {}).constructor

for await (const line of createInterface({ input: process.stdin })) {
  const { sdk, call } = JSON.parse(line)
  const { Sandbox, Template } = sdk === '2.50.0' ? v1 : v2
  const answer = {}
  try {
    answer.value = (await new Call('Sandbox', 'Template', 'kept', call)(Sandbox, Template, kept)) ?? null
  } catch (error) {
    answer.error = error.constructor.name
    answer.message = String(error.message)
    answer.value = error.exitCode ?? null
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
