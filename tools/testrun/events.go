// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// tally counts the outcome of tests. Only leaves count: a test with subtests
// is its subtests, unless it failed while all of them passed.
type tally struct {
	passed, failed, skipped int
	failures                []string // names
	skips                   []string
}

func (t *tally) add(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
	t.failures = append(t.failures, o.failures...)
	t.skips = append(t.skips, o.skips...)
}

// ok tells whether everything ran and passed.
func (t tally) ok() bool { return t.failed == 0 && t.skipped == 0 }

// packageRun is what is known of one package while its tests run.
type packageRun struct {
	outcome map[string]string // test → pass, fail, skip or empty while running
	output  map[string]*strings.Builder
}

func newPackageRun() *packageRun {
	return &packageRun{outcome: map[string]string{}, output: map[string]*strings.Builder{}}
}

func (p *packageRun) write(test, text string) {
	b := p.output[test]
	if b == nil {
		b = &strings.Builder{}
		p.output[test] = b
	}
	b.WriteString(text)
}

// counted begins what a test has counted, in a line of its log.
const counted = "counted: "

// readEvents reads the output of `go test -json` to its end, prints a line a
// package and the output of what failed or was skipped, and returns the count.
func readEvents(in io.Reader, out io.Writer) (tally, error) {
	var total tally
	packages := map[string]*packageRun{}
	builds := map[string]*strings.Builder{}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			// Not an event: the go command itself has something to say.
			fmt.Fprintf(out, "%s\n", lines.Bytes())
			continue
		}
		if e.Action == "build-output" {
			if builds[e.ImportPath] == nil {
				builds[e.ImportPath] = &strings.Builder{}
			}
			builds[e.ImportPath].WriteString(e.Output)
			continue
		}
		if e.Package == "" {
			continue
		}
		p := packages[e.Package]
		if p == nil {
			p = newPackageRun()
			packages[e.Package] = p
		}
		switch e.Action {
		case "run":
			p.outcome[e.Test] = ""
		case "output":
			p.write(e.Test, e.Output)
			// What a test has counted is told, whatever became of it.
			if _, count, ok := strings.Cut(e.Output, counted); ok {
				fmt.Fprint(out, indent(count))
			}
		case "pass", "fail", "skip":
			if e.Test != "" {
				p.outcome[e.Test] = e.Action
				break
			}
			if e.FailedBuild != "" && builds[e.FailedBuild] != nil {
				p.write("", builds[e.FailedBuild].String())
			}
			count := p.finish(e, out)
			total.add(count)
			delete(packages, e.Package)
		}
	}
	// A package that never ended: the go command was killed.
	for name, p := range packages {
		total.add(p.finish(event{Action: "fail", Package: name}, out))
	}
	return total, lines.Err()
}

// finish counts a package that has ended and prints what a reader needs.
func (p *packageRun) finish(e event, out io.Writer) tally {
	var t tally
	names := make([]string, 0, len(p.outcome))
	for name := range p.outcome {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		leaf := true
		failedBelow := false
		for _, other := range names[i+1:] {
			if strings.HasPrefix(other, name+"/") {
				leaf = false
				failedBelow = failedBelow || p.outcome[other] == "fail" || p.outcome[other] == ""
			}
		}
		full := e.Package + " " + name
		switch outcome := p.outcome[name]; {
		case outcome == "skip":
			t.skipped++
			t.skips = append(t.skips, full)
			fmt.Fprintf(out, "SKIP %s\n%s", full, indent(p.text(name)))
		case outcome == "pass" && leaf:
			t.passed++
		case outcome == "pass", outcome == "fail" && failedBelow:
			// Its subtests are counted.
		case outcome == "", outcome == "fail":
			if outcome == "" && e.Action == "pass" {
				continue // the package passed without an end for this one: not seen so far
			}
			t.failed++
			t.failures = append(t.failures, full)
			fmt.Fprintf(out, "FAIL %s\n%s", full, indent(p.text(name)))
		}
	}
	if e.Action == "fail" && t.failed == 0 {
		// The build, TestMain or the process failed, not a test.
		t.failed++
		t.failures = append(t.failures, e.Package)
		fmt.Fprintf(out, "FAIL %s\n%s", e.Package, indent(p.text("")))
	}
	if len(names) > 0 || e.Action == "fail" {
		fmt.Fprintf(out, "%-4s %-70s %7.1f s %5d tests\n", e.Action, e.Package, e.Elapsed, t.passed+t.failed+t.skipped)
	}
	return t
}

// text returns what a test wrote, or the whole package's own output.
func (p *packageRun) text(test string) string {
	if b := p.output[test]; b != nil {
		return b.String()
	}
	return ""
}

func indent(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
}
