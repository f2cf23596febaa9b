// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// Command names a program that rules run inside of a sandbox.
type Command string

// The commands.
const (
	CommandExit    Command = "exit"
	CommandSignal  Command = "signal"
	CommandPrint   Command = "print"
	CommandBytes   Command = "bytes"
	CommandCat     Command = "cat"
	CommandRead    Command = "read"
	CommandWrite   Command = "write"
	CommandEnv     Command = "env"
	CommandEnviron Command = "environ"
	CommandPwd     Command = "pwd"
	CommandSleep   Command = "sleep"
	CommandOrphan  Command = "orphan"
	CommandLines   Command = "lines"
	CommandTicks   Command = "ticks"
	CommandCounter Command = "counter"
	CommandServe   Command = "serve"
	CommandHog     Command = "hog"
	CommandFill    Command = "fill"
	CommandSpin    Command = "spin"
	CommandForks   Command = "forks"
)

// Commands are the programs that rules run inside of a sandbox. One that is
// nil is what a POSIX shell and the usual tools give, except Serve, for which
// there is no usual tool.
type Commands struct {
	Exit    func(code int) []string             // ends with the code
	Signal  func(signal int) []string           // ends itself by the signal
	Print   func(out, errs string) []string     // out and a newline to stdout; a line with errs in it to stderr
	Bytes   func(n int) []string                // writes the letter x n times, nothing else
	Cat     func() []string                     // copies stdin to stdout
	Read    func(path string) []string          // writes a file to stdout
	Write   func(path, content string) []string // replaces a file; the content is letters, digits and dashes
	Env     func(name string) []string          // prints the variable's value and a newline
	Environ func() []string                     // prints the whole environment
	Pwd     func() []string                     // prints the working directory and a newline
	Sleep   func(d time.Duration) []string
	Orphan  func(path string) []string              // leaves a child without a parent that adds to a file without end, and does not end itself
	Lines   func(n int) []string                    // a main process: prints line-1 to line-n, then idles
	Ticks   func() []string                         // a main process: prints a line several times a second
	Counter func(path string) []string              // a main process: keeps "TOKEN N" in the file; TOKEN is drawn at its start, N grows several times a second
	Serve   func(port int) []string                 // a main process: answers every TCP connection with "conformance" and closes it
	Hog     func(bytes int64) []string              // holds so much in memory at once
	Fill    func(path string, bytes int64) []string // writes so much to a file, and fails when it can't
	Spin    func(n int) []string                    // needs the processor n times as long as for 1, which is less than a millisecond
	Forks   func(n int64) []string                  // has n processes at once and fails when one can't be started
	// Lacks says of commands that there is nothing of the kind, and why. The
	// rules that need one are then left out and counted as such.
	Lacks map[Command]string
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// withDefaults fills in what is usual.
func (c *Commands) withDefaults() Commands {
	full := *c
	full.Exit = or(c.Exit, func(code int) []string { return shell("exit " + strconv.Itoa(code)) })
	full.Signal = or(c.Signal, func(signal int) []string { return shell(fmt.Sprintf("kill -%d $$", signal)) })
	full.Print = or(c.Print, func(out, errs string) []string { return shell("echo '" + out + "'; echo '" + errs + "' >&2") })
	full.Bytes = or(c.Bytes, func(n int) []string { return shell(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x`, n)) })
	full.Cat = or(c.Cat, func() []string { return []string{"cat"} })
	full.Read = or(c.Read, func(path string) []string { return []string{"cat", path} })
	full.Write = or(c.Write, func(path, content string) []string { return shell("printf %s '" + content + "' > " + path) })
	full.Env = or(c.Env, func(name string) []string { return shell(`echo "$` + name + `"`) })
	full.Environ = or(c.Environ, func() []string { return []string{"env"} })
	full.Pwd = or(c.Pwd, func() []string { return shell("pwd") })
	full.Sleep = or(c.Sleep, func(d time.Duration) []string {
		return []string{"sleep", strconv.FormatFloat(d.Seconds(), 'f', -1, 64)}
	})
	full.Orphan = or(c.Orphan, func(path string) []string {
		return shell("( ( while :; do echo x >> " + path + "; sleep 0.05; done ) & ); sleep 3600")
	})
	full.Lines = or(c.Lines, func(n int) []string {
		return shell(fmt.Sprintf("i=1; while [ $i -le %d ]; do echo line-$i; i=$((i+1)); done; exec sleep 3600", n))
	})
	full.Ticks = or(c.Ticks, func() []string { return shell("while :; do echo tick; sleep 0.1; done") })
	full.Counter = or(c.Counter, func(path string) []string {
		return shell("t=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'); n=0; " +
			"while :; do n=$((n+1)); echo $t $n > " + path + ".new; mv " + path + ".new " + path + "; sleep 0.05; done")
	})
	full.Hog = or(c.Hog, func(bytes int64) []string {
		// Without a newline in it, tail has to keep all of it.
		return shell(fmt.Sprintf("head -c %d /dev/zero | tail -n 1 > /dev/null", bytes))
	})
	full.Fill = or(c.Fill, func(path string, bytes int64) []string {
		return shell(fmt.Sprintf("head -c %d /dev/zero > %s && sync", bytes, path))
	})
	full.Spin = or(c.Spin, func(n int) []string {
		return shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", 100*n))
	})
	full.Forks = or(c.Forks, func(n int64) []string {
		return shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 5 & i=$((i+1)); done; wait", n))
	})
	return full
}

// or returns the given function, or the usual one when it is nil.
func or[F any](given, usual F) F {
	if reflect.ValueOf(given).IsNil() {
		return usual
	}
	return given
}

// complete refuses reasons that belong to no command.
func (c *Commands) complete() error {
	known := map[Command]bool{
		CommandExit: true, CommandSignal: true, CommandPrint: true, CommandBytes: true, CommandCat: true, CommandRead: true,
		CommandWrite: true, CommandEnv: true, CommandEnviron: true, CommandPwd: true, CommandSleep: true, CommandOrphan: true,
		CommandLines: true, CommandTicks: true, CommandCounter: true, CommandServe: true, CommandHog: true, CommandFill: true, CommandSpin: true,
		CommandForks: true,
	}
	for command, reason := range c.Lacks {
		if !known[command] || reason == "" {
			return fmt.Errorf("the suite lacks %q: it is no command, or no reason is given", command)
		}
	}
	return nil
}
