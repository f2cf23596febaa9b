// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// A report is how the program inside of a sandbox tells what it found: a
// finding a line, as a check, a verdict and quoted evidence, then a last line
// that says that it is whole. It comes out of a sandbox and is hostile.

// MaxReport bounds a report, in bytes.
const MaxReport = 256 << 10

const lastLine = "end"

// WriteReport writes findings as a report.
func WriteReport(w io.Writer, findings []sdk.Finding) error {
	var b strings.Builder
	for _, f := range findings {
		b.WriteString(string(f.Check) + " " + string(f.Verdict))
		for _, line := range f.Evidence {
			b.WriteString(" " + strconv.Quote(line))
		}
		b.WriteString("\n")
	}
	b.WriteString(lastLine + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// ReadReport reads a report. What is not known to it, twice the same check and
// a report that is not whole are errors: nothing of it is used then.
func ReadReport(r io.Reader) ([]sdk.Finding, error) {
	content, err := io.ReadAll(io.LimitReader(r, MaxReport+1))
	if err != nil {
		return nil, err
	}
	if len(content) > MaxReport {
		return nil, fmt.Errorf("the report is larger than %d bytes", MaxReport)
	}
	body, whole := strings.CutSuffix(string(content), lastLine+"\n")
	if !whole || body != "" && !strings.HasSuffix(body, "\n") {
		return nil, errors.New("the report is not whole")
	}
	var findings []sdk.Finding
	for line := range strings.Lines(body) {
		f, err := readLine(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(findings, func(other sdk.Finding) bool { return other.Check == f.Check }) {
			return nil, fmt.Errorf("the report has the check %s twice", f.Check)
		}
		findings = append(findings, f)
	}
	return findings, nil
}

func readLine(line string) (f sdk.Finding, err error) {
	check, rest, _ := strings.Cut(line, " ")
	verdict, rest, _ := strings.Cut(rest, " ")
	f = sdk.Finding{Check: sdk.IsolationCheck(check), Side: sdk.SideInside, Verdict: sdk.Verdict(verdict), Evidence: []string{}}
	if len(f.Check.Sides()) == 0 {
		return f, fmt.Errorf("the report has an unknown check %.40q", check)
	}
	if !f.Verdict.Valid() {
		return f, fmt.Errorf("the report has an unknown verdict %.40q", verdict)
	}
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return f, errors.New("the report has evidence that is not quoted")
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			return f, errors.New("the report has evidence that is not quoted")
		}
		if len(f.Evidence) > MaxEvidence {
			return f, errors.New("the report has too much evidence of a check")
		}
		f.Evidence = append(f.Evidence, Line(text))
		rest = rest[len(quoted):]
		if next, spaced := strings.CutPrefix(rest, " "); rest != "" && (!spaced || next == "") {
			return f, errors.New("the report has evidence that is not quoted")
		} else if rest != "" {
			rest = next
		}
	}
	return f, nil
}

// Expect is what a backend tells its program about the sandbox that it is in.
type Expect struct {
	// Canary is the name of the secret that may lie in SecretsDir; empty when
	// there is none.
	Canary string
	// First is what the first process's command line begins with.
	First string
	// Mounts are the places where the backend itself mounts something, beside
	// those of every container.
	Mounts []string
	// Offline means that there is to be no interface but loopback.
	Offline bool
	// OwnKernel means that the kernel is the sandbox's own: capabilities and
	// devices are of that kernel and reach nothing beyond it.
	OwnKernel bool
}

// Args returns an expectation as arguments of a program.
func (e Expect) Args() []string {
	args := []string{"canary=" + e.Canary, "first=" + e.First, "offline=" + strconv.FormatBool(e.Offline), "own-kernel=" + strconv.FormatBool(e.OwnKernel)}
	for _, mount := range e.Mounts {
		args = append(args, "mount="+mount)
	}
	return args
}

// ParseExpect reads the arguments that [Expect.Args] made.
func ParseExpect(args []string) (e Expect, err error) {
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "canary":
			e.Canary = value
		case "first":
			e.First = value
		case "mount":
			e.Mounts = append(e.Mounts, value)
		case "offline":
			e.Offline, err = strconv.ParseBool(value)
		case "own-kernel":
			e.OwnKernel, err = strconv.ParseBool(value)
		default:
			err = fmt.Errorf("no expectation %.40q", key)
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}
