// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package crash is the crash suite: it kills the real programs, a real
// Terraform among them, at named points, and then holds what is left against
// the promises. It has tests only, which need the build tag failpoints and
// Linux:
//
//	go run ./tools/testrun crash                   # a few minutes; part of make test
//	SANDBOXER_TEST_FULL=1 go run ./tools/testrun crash   # 50 points of each kind and verb
//	CRASH_SEED=7 CRASH_CASE=create/kill-provider/12 go test -tags failpoints ./internal/crash
//
// A run prints its seed. A case is known by verb, kind of strike and index;
// with the seed it is the same case again. CRASH_CASE is a regular expression
// of cases; with it the run does not ask for every point.
//
// How a case goes. In a lane of its own (a state directory in which another
// fleet lives too, and things that only look like ours) Terraform creates,
// snapshots or destroys, in programs built with failpoints. At the chosen
// point of the verb, while the program that has reached it waits, the strike
// falls: a signal to Terraform, SIGKILL to one of the four programs, or an
// error in place of what the act would have given. Then the suite looks, with
// eyes of its own (the disk, the process table, the state file, the lines of
// the ledger), and judges:
//
//   - what the backend holds is known to the state or the ledger;
//   - after an interrupt it is in the state or gone, before a runner's patience
//     (7.5 s) ends;
//   - the next apply, destroy, reap and list work;
//   - nothing is alive past its deadline + 60 s, and in the end nothing is
//     left but what was foreign, and that is as it was;
//   - every chain of the ledger is whole.
//
// A run fails when one of the failpoints of the checkout was never reached.
package crash
