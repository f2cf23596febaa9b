// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport/sshtest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// runShell runs a line of a shell on the host.
func runShell(t *testing.T, h *sshtransport.Host, opts sshtransport.ExecOptions, line string) (result sshtransport.ExecResult, stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	opts.Command, opts.Stdout, opts.Stderr = []string{"sh", "-c", line}, &out, &errs
	result, err = h.Exec(t.Context(), opts)
	return result, out.String(), errs.String(), err
}

// All that can become of a command is told apart.
func TestExecOutcomes(t *testing.T) {
	h := sshtest.Start(t).Host()
	for _, stdin := range []bool{false, true} {
		for name, c := range map[string]struct {
			line           string
			code           int
			stdout, stderr string
		}{
			"success":         {"echo out; echo err >&2", 0, "out\n", "err\n"},
			"failure":         {"exit 3", 3, "", ""},
			"no such program": {"exec no-such-program-here 2>/dev/null", 127, "", ""},
			"empty stdin":     {"cat; echo end", 0, "end\n", ""},
		} {
			t.Run(fmt.Sprintf("%s, stdin %v", name, stdin), func(t *testing.T) {
				var opts sshtransport.ExecOptions
				if stdin {
					opts.Stdin = strings.NewReader("")
				}
				result, stdout, stderr, err := runShell(t, h, opts, c.line)
				if err != nil || result.ExitCode != c.code || stdout != c.stdout || stderr != c.stderr {
					t.Errorf("code %d, stdout %q, stderr %q, %v", result.ExitCode, stdout, stderr, err)
				}
			})
		}
		t.Run(fmt.Sprintf("signal, stdin %v", stdin), func(t *testing.T) {
			var opts sshtransport.ExecOptions
			if stdin {
				opts.Stdin = strings.NewReader("")
			}
			result, _, _, err := runShell(t, h, opts, "kill -s TERM $$")
			if err != nil || result.ExitCode != 128+int(syscall.SIGTERM) {
				t.Errorf("%+v, %v", result, err)
			}
			if stdin && result.Signal != "TERM" {
				t.Errorf("signal %q, want TERM", result.Signal)
			}
		})
	}
	t.Run("the program itself is missing", func(t *testing.T) {
		result, err := h.Exec(t.Context(), sshtransport.ExecOptions{Command: []string{"no-such-program-here"}})
		if err != nil || result.ExitCode != 127 {
			t.Errorf("%+v, %v", result, err)
		}
		_, err = h.Output(t.Context(), "no-such-program-here")
		var failed *sshtransport.CommandError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), "there is no such program") {
			t.Errorf("Output: %v", err)
		}
	})
}

// argv is passed on as it is, whatever the login shell: the words are those
// that shells act on.
func TestArgvThroughEveryLoginShell(t *testing.T) {
	shells := map[string]string{
		"dash": "dash -c", "bash": "bash -c", "busybox ash": "busybox sh -c", "tcsh": "tcsh -c", "fish": "fish -c",
	}
	words := []string{"'", `"`, `\`, "!", "!!", "$HOME", "`id`", "$(id)", "*", "?", "[a]", "{a,b}", "~", "#", ";", "|", "&", ">", "<", "\n", "\r", "\t",
		" ", "  two  ", "", "-n", "--", "%s", "\\n", "é", "\xff\xfe", "^", "(", ")", "\x01", "=", "a=b", "\\'", "'\\''", "EOF\n", "\n\n"}
	random := rand.New(rand.NewPCG(1, 2))
	for name, shell := range shells {
		t.Run(name, func(t *testing.T) {
			// What the login shell of an account gets is what this one gets.
			h := sshtest.Start(t, `ForceCommand exec `+shell+` "$SSH_ORIGINAL_COMMAND"`).Host()
			check := func(argv []string) {
				t.Helper()
				var out bytes.Buffer
				result, err := h.Exec(t.Context(), sshtransport.ExecOptions{Command: append([]string{"printf", `%s\0`}, argv...), Stdout: &out})
				if err != nil || result.ExitCode != 0 {
					t.Fatalf("%q: %+v, %v", argv, result, err)
				}
				if got := strings.Split(strings.TrimSuffix(out.String(), "\x00"), "\x00"); strings.Join(got, "\x00") != strings.Join(argv, "\x00") {
					t.Errorf("argv %q became %q", argv, got)
				}
			}
			check(words)
			// The server waits for the command itself, and so tells its end.
			if result, _, _, err := runShell(t, h, sshtransport.ExecOptions{}, "exit 7"); err != nil || result.ExitCode != 7 {
				t.Errorf("exit 7 ended as %+v, %v", result, err)
			}
			for range 5 {
				var argv []string
				for range 1 + random.IntN(6) {
					var word string
					for range random.IntN(5) {
						word += words[random.IntN(len(words))]
					}
					argv = append(argv, word)
				}
				check(argv)
			}
		})
	}
}

// The environment, the directory and the rest of stdin arrive, binary too.
func TestExecEnvironmentDirectoryAndStdin(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	dir := filepath.Join(s.Dir, "it's a dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, stdout, _, err := runShell(t, h, sshtransport.ExecOptions{Dir: dir, Env: map[string]string{"A": "it's $HOME\n", "B_2": ""}}, `printf "%s|%s|%s" "$PWD" "$A" "${B_2-unset}"`)
	if want := dir + "|it's $HOME\n|"; stdout != want || err != nil {
		t.Errorf("%q, want %q, %v", stdout, want, err)
	}
	result, _, _, err := runShell(t, h, sshtransport.ExecOptions{Dir: "/no/such/dir"}, "true")
	if result.ExitCode != 126 || err != nil {
		t.Errorf("a directory that is not there: %+v, %v", result, err)
	}
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	var out bytes.Buffer
	result, err = h.Exec(t.Context(), sshtransport.ExecOptions{Command: []string{"cat"}, Stdin: bytes.NewReader(data), Stdout: &out})
	if result.ExitCode != 0 || err != nil || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back of %d, %+v, %v", out.Len(), len(data), result, err)
	}
	for name, opts := range map[string]sshtransport.ExecOptions{
		"NUL in an argument":  {Command: []string{"echo", "a\x00b"}},
		"NUL in a value":      {Command: []string{"true"}, Env: map[string]string{"A": "\x00"}},
		"name of a variable":  {Command: []string{"true"}, Env: map[string]string{"A;id": "x"}},
		"empty command":       {},
		"command of no name":  {Command: []string{""}},
		"too long":            {Command: []string{"true", strings.Repeat("x", 1<<20)}},
		"NUL in the workdir":  {Command: []string{"true"}, Dir: "/\x00"},
		"a leading digit":     {Command: []string{"true"}, Env: map[string]string{"1": ""}},
		"an empty variable":   {Command: []string{"true"}, Env: map[string]string{"": ""}},
		"newline in variable": {Command: []string{"true"}, Env: map[string]string{"A\n": ""}},
	} {
		if _, err := h.Exec(t.Context(), opts); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A long command line breaks nothing: it is no argument of the session.
func TestLongCommands(t *testing.T) {
	h := sshtest.Start(t).Host()
	argv := []string{"sh", "-c", `printf %s "$*" | wc -c`, "sh"}
	for range 8 {
		argv = append(argv, strings.Repeat("x", 100_000))
	}
	out, err := h.Output(t.Context(), argv...)
	if strings.TrimSpace(out) != strconv.Itoa(8*100_000+7) || err != nil {
		t.Errorf("%q, %v", out, err)
	}
}

// Much output on both streams neither blocks nor is lost, and Output is
// bounded.
func TestLargeOutput(t *testing.T) {
	h := sshtest.Start(t).Host()
	result, stdout, stderr, err := runShell(t, h, sshtransport.ExecOptions{}, "head -c 9000000 /dev/zero >&2; head -c 9000000 /dev/zero")
	if err != nil || result.ExitCode != 0 || len(stdout) != 9_000_000 || len(stderr) != 9_000_000 {
		t.Errorf("%d and %d bytes, %+v, %v", len(stdout), len(stderr), result, err)
	}
	if _, err := h.Output(t.Context(), "head", "-c", "2000000", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "more than 1 MiB") {
		t.Errorf("Output of 2 MB: %v", err)
	}
	// A writer that fails is an error and not a silent gap.
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	_, err = h.Exec(t.Context(), sshtransport.ExecOptions{Command: []string{"head", "-c", "3000000", "/dev/zero"}, Stdout: full})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
}

// Fifty commands at once are run on one connection that allows ten sessions.
func TestFiftyExecsOnOneConnection(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	var running sync.WaitGroup
	for i := range 50 {
		running.Go(func() {
			opts := sshtransport.ExecOptions{}
			line := "echo " + strconv.Itoa(i)
			if i%5 == 0 {
				opts.Stdin, line = strings.NewReader(strconv.Itoa(i)+"\n"), "cat"
			}
			result, stdout, _, err := runShell(t, h, opts, line)
			if err != nil || result.ExitCode != 0 || stdout != strconv.Itoa(i)+"\n" {
				t.Errorf("%d: %+v, %q, %v", i, result, stdout, err)
			}
		})
	}
	running.Wait()
	if s.Logins() != 1 {
		t.Errorf("%d connections, want 1", s.Logins())
	}
}

// A server that allows fewer sessions says so, and an exec that needs two is
// not started with one.
func TestMaxSessions(t *testing.T) {
	s := sshtest.Start(t, "MaxSessions 1")
	h := s.Host()
	if out, err := h.Output(t.Context(), "echo", "one"); out != "one\n" || err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	file := filepath.Join(s.Dir, "ran")
	_, err := h.Exec(t.Context(), sshtransport.ExecOptions{Command: []string{"touch", file}, Stdin: strings.NewReader("")})
	if err == nil || !strings.Contains(err.Error(), "MaxSessions") {
		t.Errorf("two sessions of one: %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the command ran: %v", err)
	}
	// Nothing is leaked: more calls than there are sessions in all.
	for range 12 {
		waitFor(t, func() bool { out, err := h.Output(t.Context(), "echo", "one"); return err == nil && out == "one\n" })
	}
}

// waitFor fails the test when something does not become true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("it does not happen")
}

// startTree runs a command with children and returns its process group, and a
// channel with what became of the call.
func startTree(t *testing.T, ctx context.Context, h *sshtransport.Host, stdin io.Reader) (group int, ended chan error) {
	t.Helper()
	out, in := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		_, err := h.Exec(ctx, sshtransport.ExecOptions{
			Command: []string{"sh", "-c", `sleep 600 & (sleep 601 & sleep 602) & ps -o pgid= -p $$; trap "" HUP TERM INT; sleep 603; echo late`},
			Stdin:   stdin, Stdout: in,
		})
		ended <- err
	}()
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	group, err = strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	return group, ended
}

// groupExists tells whether a process of a group lives. A dead one that its
// parent has not asked for yet does not.
func groupExists(group int) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		_, rest, _ := bytes.Cut(content, []byte(") "))
		if fields := strings.Fields(string(rest)); len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" {
			return true
		}
	}
	return false
}

// Nothing is left of a command whose context ended, nor of one whose
// connection or server died, with and without a stdin of its own.
func TestNothingIsLeftBehind(t *testing.T) {
	for name, end := range map[string]func(cancel func(), h *sshtransport.Host, s *sshtest.Server){
		"context":       func(cancel func(), _ *sshtransport.Host, _ *sshtest.Server) { cancel() },
		"connection":    func(_ func(), h *sshtransport.Host, _ *sshtest.Server) { h.Close() },
		"server killed": func(_ func(), _ *sshtransport.Host, s *sshtest.Server) { s.KillConnections() },
	} {
		for _, stdin := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stdin %v", name, stdin), func(t *testing.T) {
				s := sshtest.Start(t)
				h := s.Host()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var input io.Reader
				if stdin {
					reader, writer := io.Pipe()
					defer writer.Close()
					input = reader
				}
				group, ended := startTree(t, ctx, h, input)
				if !groupExists(group) {
					t.Fatal("it does not run")
				}
				end(cancel, h, s)
				err := wait(t, ended)
				if name == "context" {
					if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "was killed") {
						t.Errorf("the call returned %v", err)
					}
				} else if !errors.Is(err, sdk.ErrUnreachable) {
					t.Errorf("the call returned %v", err)
				}
				waitFor(t, func() bool { return !groupExists(group) })
			})
		}
	}
}

// What a command leaves running on purpose is left alone when it ends.
func TestBackgroundProcessesSurviveTheirCommand(t *testing.T) {
	h := sshtest.Start(t).Host()
	for _, stdin := range []io.Reader{nil, strings.NewReader("")} {
		_, stdout, _, err := runShell(t, h, sshtransport.ExecOptions{Stdin: stdin}, "sleep 600 >/dev/null 2>&1 & echo $!")
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(stdout))
		if err != nil {
			t.Fatal(err)
		}
		h.Close() // sessions and all
		time.Sleep(100 * time.Millisecond)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
}

// A context that ends while the peer is frozen ends the call soon, and the
// error says that the outcome is not known.
func TestExecOnAFrozenPeer(t *testing.T) {
	s := sshtest.Start(t)
	h := s.Host()
	ctx, cancel := context.WithCancel(t.Context())
	group, ended := startTree(t, ctx, h, nil)
	s.Freeze()
	cancel()
	err := wait(t, ended)
	if !errors.Is(err, sdk.ErrUnreachable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not known") {
		t.Errorf("the call returned %v", err)
	}
	s.Thaw()
	waitFor(t, func() bool { return !groupExists(group) })
}

// Secrets in the environment or the arguments are in no list of processes as
// part of the session's command.
func TestScriptIsNoArgument(t *testing.T) {
	h := sshtest.Start(t).Host()
	_, stdout, _, err := runShell(t, h, sshtransport.ExecOptions{Env: map[string]string{"TOKEN": "s3cret-value"}}, `p=$$; while [ "$p" -gt 1 ]; do tr "\0" " " </proc/$p/cmdline; p=$(ps -o ppid= -p $p | tr -d " "); done`)
	if err != nil || strings.Contains(stdout, "s3cret") || !strings.Contains(stdout, "sshd") {
		t.Errorf("%q, %v", stdout, err)
	}
}

// What a login shell writes by itself is no part of the output, and an
// account that runs no commands is told by its own words.
func TestLoginShells(t *testing.T) {
	noisy := sshtest.Start(t, `ForceCommand echo welcome; echo warning >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"`).Host()
	_, stdout, stderr, err := runShell(t, noisy, sshtransport.ExecOptions{}, "echo out; echo err >&2")
	if stdout != "out\n" || stderr != "err\n" || err != nil {
		t.Errorf("%q, %q, %v", stdout, stderr, err)
	}
	if _, err := noisy.Output(t.Context(), "echo", "x"); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct{ command, says string }{
		"nologin": {"/usr/sbin/nologin", "not available"},
		"endless": {"yes", "writes more than"},
		"silent":  {"/bin/false", "runs no commands"},
	} {
		t.Run(name, func(t *testing.T) {
			h := sshtest.Start(t, "ForceCommand "+c.command).Host()
			_, err := h.Output(t.Context(), "true")
			if !errors.Is(err, sdk.ErrUnsupported) {
				t.Errorf("%v", err)
			}
			if name != "endless" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

// A command as a stream: both directions, half-close, and why it failed.
func TestDialCommand(t *testing.T) {
	h := sshtest.Start(t).Host()
	conn, err := h.DialCommand(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := bytes.Repeat([]byte("x"), 5<<20)
	go func() {
		conn.Write(sent)
		conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(sent), err)
	}
	for name, c := range map[string]struct {
		argv []string
		says string
	}{
		"missing": {[]string{"no-such-program-here", "system", "dial-stdio"}, "there is no such program"},
		"failing": {[]string{"sh", "-c", "echo permission denied >&2; exit 1"}, "permission denied"},
	} {
		conn, err := h.DialCommand(t.Context(), c.argv...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err = io.ReadAll(conn)
		var failed *sshtransport.CommandError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
	}
	// Closing gives the session back, and more are waited for than there are,
	// whatever the command still wants to write.
	var streams sync.WaitGroup
	for range 30 {
		streams.Go(func() {
			conn, err := h.DialCommand(t.Context(), "sh", "-c", "head -c 5000000 /dev/zero; cat")
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
		})
	}
	streams.Wait()
}
