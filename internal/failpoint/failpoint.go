// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package failpoint lets the crash suite stop the program at named places.
//
// A place is a constant of type [Point] beside the act that it belongs to,
// and a call of [Hit] with it. The constants of the checkout are the whole
// list: the suite reads them from the source and fails when a run has not
// reached one of them.
//
// Hit is empty in every build but the suite's own (build tag failpoints):
// nothing is looked up, no environment variable is read, and the compiler
// removes the call. So no setting can switch a failpoint on in a release, and
// the check of the release archives looks for that.
//
// In the suite's build Hit tells the suite, over a Unix socket, where the
// process is, and waits for the answer. The suite knows the process by the
// socket's credentials; while Hit waits it sends whatever signal it likes to
// whichever process it likes, and then lets Hit go on, or return an error: a
// failed write, or an answer that was lost. Each process connects once and
// keeps the connection, so that it also reaches the suite after it has given
// up the file system that the socket is in, as the supervisor does.
//
// Why not a library: gofail and pingcap/failpoint rewrite the source before a
// build and are steered by an environment variable or HTTP inside of the
// process. What is needed here is the opposite: a checkout that is never
// rewritten, a pause that somebody outside holds while it kills another
// process, and one conversation with four programs, one of which has no
// network and no file system. Both would be more code to tame than this is.
package failpoint

// Point names a place, as "part.act.moment": the moment is what has just
// been done, or with "-ing" what is about to be.
type Point string
