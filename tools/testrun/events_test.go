// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestReadEvents(t *testing.T) {
	cases := map[string]struct {
		lines                   string
		passed, failed, skipped int
		printed                 string
	}{
		"leaves count, parents do not": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"run","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			passed: 2,
		},
		"a failure shows its output": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"  boom\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			failed: 1, printed: "boom",
		},
		"a parent that fails by itself counts": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			passed: 1, failed: 1,
		},
		"a failed subtest is one failure": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			failed: 1,
		},
		"a skip is counted and says why": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"needs docker\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			skipped: 1, printed: "needs docker",
		},
		"a package without tests is no skip": {
			lines: `{"Action":"output","Package":"p","Output":"?   p [no test files]\n"}
{"Action":"skip","Package":"p"}`,
		},
		"a build failure is a failure": {
			lines: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			failed: 1, printed: "undefined: x",
		},
		"a test that never ended is a failure": {
			lines: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}`,
			failed: 1, printed: "timed out",
		},
		"a package that never ended is a failure": {
			lines:  `{"Action":"start","Package":"p"}`,
			failed: 1,
		},
		"a line of the go command is passed on": {
			lines: "go: no such tool", printed: "no such tool",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var printed strings.Builder
			got, err := readEvents(strings.NewReader(c.lines), &printed)
			if err != nil {
				t.Fatal(err)
			}
			if got.passed != c.passed || got.failed != c.failed || got.skipped != c.skipped {
				t.Errorf("%d passed, %d failed, %d skipped; want %d, %d, %d", got.passed, got.failed, got.skipped, c.passed, c.failed, c.skipped)
			}
			if !strings.Contains(printed.String(), c.printed) {
				t.Errorf("printed %q, want %q in it", printed.String(), c.printed)
			}
			if got.ok() != (c.failed == 0 && c.skipped == 0) {
				t.Errorf("ok() = %v", got.ok())
			}
		})
	}
}

func TestEveryPartIsChosenByName(t *testing.T) {
	for _, p := range parts() {
		chosen, err := choose(parts(), []string{p.name})
		if err != nil || len(chosen) != 1 || chosen[0].name != p.name {
			t.Errorf("choose(%s) = %v, %v", p.name, chosen, err)
		}
	}
	if _, err := choose(parts(), []string{"nothing"}); err == nil {
		t.Error("an unknown part was accepted")
	}
	all, err := choose(parts(), nil)
	if err != nil || len(all) != len(parts()) {
		t.Errorf("no name chose %d parts, %v", len(all), err)
	}
	if !slices.ContainsFunc(all, func(p part) bool { return p.name == "bench" }) {
		t.Error("there is no bench part")
	}
}
