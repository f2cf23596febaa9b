// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package conformance checks that an extension does what its capability
// document claims.
//
// A [Suite] says how to get instances of the extension and what the sandboxes
// of the run are made from. [Run] drives real sandboxes through the rules that
// hold on every backend and returns a [Report] that is bound to the document:
// for each rule what was claimed, what was seen and what came of it.
//
//	report, err := conformance.Run(ctx, conformance.Suite{
//		New: func(context.Context) (sdk.Extension, func(), error) {
//			return acme.New(), func() {}, nil
//		},
//		Config: []byte(`{"region": "eu"}`),
//	})
//
// Package conformancetest makes each rule a subtest of a Go test.
//
// A rule asks what a host would ask, and looks for the answer where another
// host would look: through a second instance of the extension, and through one
// that acts for another fleet. So a factory's instances have to meet at one
// backend. The instances may be values in this process or clients of
// processes: the kit can't tell.
//
// What an outcome means:
//   - passed: the rule was seen to hold.
//   - failed: it was seen not to.
//   - not_applicable: the document says that a feature is unsupported, and
//     the row says which. Nothing else makes a rule not applicable.
//   - suite_excluded: whoever wrote the suite left it out, and says why:
//     an image without a shell, a backend that can't be made to lie.
//   - error: the rule could not be tried, most often because something that
//     another rule is about does not work.
//
// A report with a failed row, an error, or something left behind at the
// backend has [Report.Failed]. The features that are claimed and that no rule
// looked at are in [Report.Unseen]: a report is no word on those.
package conformance
