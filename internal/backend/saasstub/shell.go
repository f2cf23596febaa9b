// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// A box's files and the interpreter of its commands.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

const secretsDir = "/run/secrets/"

// filesystem is what a command sees of its box.
type filesystem interface {
	read(path string) (BoxFile, bool)
	write(path string, file BoxFile)
	remove(path string) bool
	names() []string
}

// process is one command at work.
type process struct {
	ctx            context.Context
	clock          clock.Clock
	files          filesystem
	env            map[string]string
	dir            string
	stdin          io.Reader
	stdout, stderr io.Writer
	// deadline ends the command; zero is none. Sleeping is all that takes time.
	deadline time.Time
	// held tells whether the box is paused, or that it has ended. A main
	// process has none: it is over before anything can happen to its box.
	held func() (paused bool, err error)
}

// lookEvery is how long a command sleeps without looking what has become of
// its box.
const lookEvery = 50 * time.Millisecond

var (
	errTimedOut = errors.New("timed out")
	errKilled   = errors.New("its box has ended")
)

// exited carries an exit code out of a script.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// commands are the words that a box knows. `sh -c` takes a script of them,
// joined by ";", "&&" or newlines, with quotes, $NAME and > or >> FILE. They
// return an exit code; an error ends the process.
var commands map[string]func(p *process, arguments []string) (int, error)

func init() {
	// In init, because sh refers to the table.
	commands = map[string]func(p *process, arguments []string) (int, error){
		"true":  func(*process, []string) (int, error) { return 0, nil },
		"false": func(*process, []string) (int, error) { return 1, nil },
		"echo": func(p *process, arguments []string) (int, error) {
			end := "\n"
			if len(arguments) > 0 && arguments[0] == "-n" {
				arguments, end = arguments[1:], ""
			}
			return 0, p.print(strings.Join(arguments, " ") + end)
		},
		"pwd":      func(p *process, _ []string) (int, error) { return 0, p.print(p.dir + "\n") },
		"cat":      (*process).cat,
		"ls":       (*process).ls,
		"rm":       (*process).rm,
		"sleep":    (*process).sleep,
		"env":      (*process).printenv,
		"printenv": (*process).printenv,
		"sh":       (*process).sh,
		"exit": func(_ *process, arguments []string) (int, error) {
			code, err := strconv.Atoi(strings.Join(arguments, " "))
			if err != nil {
				code = 2
			}
			return 0, exited(code)
		},
	}
}

// run runs one command and returns its exit code.
func (p *process) run(command []string) (int, error) {
	code, err := p.runWord(command)
	var exit exited
	if errors.As(err, &exit) {
		return int(exit), nil
	}
	return code, err
}

func (p *process) runWord(command []string) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	if len(command) == 0 {
		return 0, nil
	}
	act, ok := commands[path.Base(command[0])]
	if !ok {
		return 127, p.complain("%s: not found", command[0])
	}
	return act(p, command[1:])
}

func (p *process) print(text string) error {
	_, err := io.WriteString(p.stdout, text)
	return err
}

func (p *process) complain(format string, arguments ...any) error {
	_, err := fmt.Fprintf(p.stderr, format+"\n", arguments...)
	return err
}

func (p *process) abs(name string) string { return absolute(p.dir, name) }

func absolute(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}

func (p *process) cat(arguments []string) (int, error) {
	if len(arguments) == 0 {
		_, err := io.Copy(p.stdout, p.stdin)
		return 0, err
	}
	code := 0
	for _, name := range arguments {
		file, ok := p.files.read(p.abs(name))
		if !ok || file.Dir {
			code = 1
			why := "no such file"
			if ok {
				why = "is a directory"
			}
			if err := p.complain("cat: %s: %s", name, why); err != nil {
				return 0, err
			}
			continue
		}
		if _, err := p.stdout.Write(file.Content); err != nil {
			return 0, err
		}
	}
	return code, nil
}

func (p *process) ls(arguments []string) (int, error) {
	dir := p.abs(cmp.Or(strings.Join(arguments, " "), "."))
	var found []string
	self, there := p.files.read(dir)
	if there && !self.Dir {
		return 0, p.print(dir + "\n")
	}
	for _, name := range p.files.names() {
		if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			found = append(found, first)
		}
	}
	if len(found) == 0 && dir != "/" && !there {
		return 1, p.complain("ls: %s: no such directory", dir)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(found))) {
		if err := p.print(name + "\n"); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (p *process) rm(arguments []string) (int, error) {
	code := 0
	for _, name := range arguments {
		why := "no such file"
		if file, _ := p.files.read(p.abs(name)); file.Dir {
			why = "is a directory"
		} else if p.files.remove(p.abs(name)) {
			continue
		}
		code = 1
		if err := p.complain("rm: %s: %s", name, why); err != nil {
			return 0, err
		}
	}
	return code, nil
}

func (p *process) sleep(arguments []string) (int, error) {
	text := strings.Join(arguments, " ")
	d, err := time.ParseDuration(text)
	if err != nil {
		if d, err = time.ParseDuration(text + "s"); err != nil {
			return 2, p.complain("sleep: %q is no time", text)
		}
	}
	return 0, p.wait(d)
}

// wait lets time pass, and ends early with the command's deadline or its box.
func (p *process) wait(d time.Duration) error {
	if p.held == nil {
		return p.clock.Sleep(p.ctx, d)
	}
	until := p.clock.Now().Add(d)
	for {
		paused, err := p.held()
		if err != nil {
			return err
		}
		now := p.clock.Now()
		step := lookEvery
		if !p.deadline.IsZero() {
			if !now.Before(p.deadline) {
				return errTimedOut
			}
			step = min(step, p.deadline.Sub(now))
		}
		if !paused {
			if !now.Before(until) {
				return nil
			}
			step = min(step, until.Sub(now))
		}
		if err := p.clock.Sleep(p.ctx, step); err != nil {
			return err
		}
	}
}

func (p *process) printenv(arguments []string) (int, error) {
	if len(arguments) > 0 {
		value, ok := p.env[arguments[0]]
		if !ok {
			return 1, nil
		}
		return 0, p.print(value + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(p.env)) {
		if err := p.print(name + "=" + p.env[name] + "\n"); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (p *process) sh(arguments []string) (int, error) {
	if len(arguments) < 2 || arguments[0] != "-c" {
		return 2, p.complain("sh: only -c SCRIPT is known")
	}
	code := 0
	for _, line := range splitScript(arguments[1], p.env) {
		if line.and && code != 0 {
			continue
		}
		var err error
		if code, err = p.runLine(line); err != nil {
			return code, err
		}
	}
	return code, nil
}

func (p *process) runLine(line scriptLine) (int, error) {
	if line.into == "" {
		return p.runWord(line.words)
	}
	name := p.abs(line.into)
	if into, _ := p.files.read(name); into.Dir {
		return 1, p.complain("sh: %s: is a directory", name)
	}
	var out bytes.Buffer
	inner := *p
	inner.stdout = &out
	code, err := inner.runWord(line.words)
	file := BoxFile{Mode: 0o644}
	if old, ok := p.files.read(name); ok && line.add {
		file = BoxFile{Content: bytes.Clone(old.Content), Mode: old.Mode}
	}
	file.Content = append(file.Content, out.Bytes()...)
	p.files.write(name, file)
	return code, err
}

// scriptLine is one command of a script.
type scriptLine struct {
	words []string
	and   bool   // only after success
	into  string // file that takes the output
	add   bool
}

// splitScript reads a script. It forgives what it does not know.
func splitScript(script string, env map[string]string) []scriptLine {
	var lines []scriptLine
	var line scriptLine
	var word strings.Builder
	begun, redirect := false, false
	endWord := func() {
		switch {
		case !begun:
		case redirect:
			line.into, redirect = word.String(), false
		default:
			line.words = append(line.words, word.String())
		}
		word.Reset()
		begun = false
	}
	endLine := func(and bool) {
		endWord()
		if len(line.words) > 0 {
			lines = append(lines, line)
		}
		line = scriptLine{and: and}
	}
	quote := byte(0)
	for i := 0; i < len(script); i++ {
		c := script[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, begun = c, true
		case quote != '\'' && c == '$':
			name := variable(script[i+1:])
			word.WriteString(env[name])
			begun = true
			i += len(name)
		case quote != 0:
			word.WriteByte(c)
		case c == ';' || c == '\n':
			endLine(false)
		case strings.HasPrefix(script[i:], "&&"):
			endLine(true)
			i++
		case c == '>':
			endWord()
			redirect, line.add = true, strings.HasPrefix(script[i:], ">>")
			if line.add {
				i++
			}
		case c == ' ' || c == '\t':
			endWord()
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	endLine(false)
	return lines
}

// variable returns the name at the beginning of a text.
func variable(text string) string {
	for i, r := range text {
		if r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return text[:i]
		}
	}
	return text
}
