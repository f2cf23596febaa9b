// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package ledger is the local, append-only record of what happened to each
// sandbox and snapshot: intent journal, audit trail, outbox and evidence in
// one.
//
// There is one log per sandbox, a file of JSON lines chained by their
// hashes. An [Ledger.Append] that has returned survives a kill and a power
// failure; one that has not may or may not be there, and is never half
// there. Any number of processes may use one directory.
//
// On disk, below the ledger's directory:
//
//	id                        this ledger's id
//	lock                      taken while the id is made
//	exclusive                 taken by Exclusive
//	logs/X/ID.jsonl           one log; X is the last character of the id
//	quarantine/ID.N.jsonl     a log that failed its check, as it was
//	quarantine/ID.N.reason    why
//
// The outer form of a line holds for every format version: a JSON object
// whose first field is the version "v" and whose last is "hash", the SHA-256
// of the object without that field. So a damaged line is told from one that
// a newer version wrote: the first is quarantined, the second refused and
// left alone.
package ledger
