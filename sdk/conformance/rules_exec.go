// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Running commands.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func execRules() []Rule {
	rule := func(name, title string, try func(c *check), commands ...Command) Rule {
		return Rule{ID: "exec/" + name, Title: title, Features: []sdk.Feature{sdk.FeatureExec}, commands: commands, try: try}
	}
	return []Rule{
		rule("exit_code", "the exit code of a command arrives", execExitCode, CommandExit),
		rule("signal", "a command that a signal ended has the exit code 128+n", execSignal, CommandSignal),
		rule("streams", "stdout and stderr are kept apart", execStreams, CommandPrint),
		rule("large_output", "a megabyte of output arrives whole", execLargeOutput, CommandBytes),
		rule("stdin", "a megabyte of input arrives whole, and its end as well", execStdin, CommandCat),
		rule("no_stdin", "without an input a command reads its end", execNoStdin, CommandCat),
		rule("env", "the variables of profile, create and exec arrive, the later before the earlier", execEnv, CommandEnv),
		rule("workdir", "a command runs in the directory that is asked for", execWorkdir, CommandPwd),
		rule("timeout", "the timeout ends a command, and says so", execTimeout, CommandSleep),
		rule("timeout_tree", "the timeout ends a child that lost its parent, too", execTimeoutTree, CommandOrphan, CommandRead),
		rule("cancel", "the end of the context ends a command", execCancel, CommandSleep),
		rule("cancel_tree", "the end of the context ends a child that lost its parent, too", execCancelTree, CommandOrphan, CommandRead),
		rule("concurrent", "commands run at the same time, each with its own streams", execConcurrent, CommandCat),
		rule("second_instance", "another instance runs commands in the same sandbox", execSecondInstance, CommandRead, CommandWrite),
		rule("empty", "an empty command is refused", execEmpty),
	}
}

func (c *check) commands() *Commands { return &c.kit.suite.Commands }

// output is the end of a command.
type output struct {
	sdk.ExecResult
	stdout, stderr string
}

func (o output) String() string {
	return fmt.Sprintf("exit code %d, stdout %.200q, stderr %.200q", o.ExitCode, o.stdout, o.stderr)
}

// execute runs a command to its end.
func (c *check) execute(ext sdk.Extension, opts sdk.ExecOptions) (output, error) {
	var stdout, stderr limited
	opts.Stdout, opts.Stderr = &stdout, &stderr
	result, err := ability[sdk.Execer](c, ext).Exec(c.ctx, opts)
	return output{result, stdout.String(), stderr.String()}, err
}

// exec runs a command that another rule is about, and returns its output.
func (c *check) exec(target sdk.Target, command []string) string {
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: command})
	c.need(err, fmt.Sprintf("run %.200q", command))
	if got.ExitCode != 0 {
		c.cannot("run %.200q: %s", command, got)
	}
	return got.stdout
}

// limited keeps what is written to it, up to a bound: an extension is
// someone else's program.
type limited struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

const mostOutput = 16 << 20

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept.Len()+len(p) > mostOutput {
		return 0, errors.New("more output than the kit takes")
	}
	return l.kept.Write(p)
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.String()
}

func execExitCode(c *check) {
	_, target := c.ready(c.creation())
	for _, code := range []int{0, 1, 2, 42, 127, 255} {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Exit(code)})
		c.failIf(err != nil, "a command that ends with %d is an error: %v", code, err)
		c.failIf(got.ExitCode != code || got.TimedOut, "a command that ends with %d is said to end with %d (timed out: %v)", code, got.ExitCode, got.TimedOut)
	}
}

func execSignal(c *check) {
	_, target := c.ready(c.creation())
	for _, signal := range []int{9, 15} {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Signal(signal)})
		c.failIf(err != nil, "a command that signal %d ends is an error: %v", signal, err)
		c.failIf(got.ExitCode != 128+signal, "a command that signal %d ends has exit code %d", signal, got.ExitCode)
	}
}

func execStreams(c *check) {
	_, target := c.ready(c.creation())
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Print("to-stdout", "to-stderr")})
	c.failIf(err != nil, "exec: %v", err)
	c.failIf(got.stdout != "to-stdout\n" || !strings.Contains(got.stderr, "to-stderr") || strings.Contains(got.stderr, "to-stdout"), "%s", got)
	// Nobody has to want the output.
	_, err = ability[sdk.Execer](c, c.kit.a).Exec(c.ctx, sdk.ExecOptions{Target: target, Command: c.commands().Print("a", "b")})
	c.failIf(err != nil, "exec without writers: %v", err)
}

const megabyte = 1 << 20

func execLargeOutput(c *check) {
	_, target := c.ready(c.creation())
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Bytes(megabyte)})
	c.failIf(err != nil, "exec: %v", err)
	n := strings.Count(got.stdout, "x")
	c.failIf(got.ExitCode != 0 || n != megabyte || len(got.stdout) != megabyte, "%d bytes arrived, %d of them right (exit code %d)", len(got.stdout), n, got.ExitCode)
}

func execStdin(c *check) {
	_, target := c.ready(c.creation())
	sent := strings.Repeat("0123456789abcde\n", megabyte/16)
	// A reader that is no file and has no length.
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Cat(), Stdin: io.MultiReader(strings.NewReader(sent))})
	c.failIf(err != nil, "exec: %v", err)
	c.failIf(got.ExitCode != 0 || got.stdout != sent, "%d bytes were sent and %d came back (exit code %d)", len(sent), len(got.stdout), got.ExitCode)
}

func execNoStdin(c *check) {
	_, target := c.ready(c.creation())
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Cat(), Timeout: c.kit.suite.Timing.Grace})
	c.failIf(err != nil, "exec: %v", err)
	c.failIf(got.TimedOut || got.ExitCode != 0 || got.stdout != "", "%s (timed out: %v)", got, got.TimedOut)
}

func execEnv(c *check) {
	opts := c.creation(func(p *sdk.Profile) {
		p.Env = maps.Clone(p.Env)
		if p.Env == nil {
			p.Env = map[string]string{}
		}
		p.Env["CONFORMANCE_A"], p.Env["CONFORMANCE_B"], p.Env["CONFORMANCE_C"] = "profile", "profile", "profile"
	})
	opts.Env = map[string]string{"CONFORMANCE_B": "create", "CONFORMANCE_C": "create"}
	_, target := c.ready(opts)
	for name, want := range map[string]string{"CONFORMANCE_A": "profile", "CONFORMANCE_B": "create", "CONFORMANCE_C": "exec = 1"} {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Env(name), Env: map[string]string{"CONFORMANCE_C": "exec = 1"}})
		c.failIf(err != nil, "exec: %v", err)
		c.failIf(got.stdout != want+"\n", "%s is %q, not %q", name, got.stdout, want)
	}
}

func execWorkdir(c *check) {
	_, target := c.ready(c.creation())
	for _, dir := range []string{"/tmp", "/"} {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Pwd(), Workdir: dir})
		c.failIf(err != nil, "exec in %s: %v", dir, err)
		c.failIf(got.stdout != dir+"\n", "asked for %s, it ran in %q", dir, got.stdout)
	}
}

func execTimeout(c *check) {
	_, target := c.ready(c.creation())
	began := c.now()
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Sleep(10 * c.kit.suite.Timing.Grace), Timeout: 300 * time.Millisecond})
	took := c.now().Sub(began)
	c.failIf(err != nil, "a timeout is a result, and it was an error: %v", err)
	c.failIf(!got.TimedOut, "it does not say that the timeout ended it: %s", got)
	c.failIf(took > c.kit.suite.Timing.Grace, "it took %s", took)
	// A command that ends in time did not time out.
	got, err = c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Exit(3), Timeout: 10 * c.kit.suite.Timing.Grace})
	c.failIf(err != nil || got.TimedOut, "a command that ended in time: timed out: %v, %v", got.TimedOut, err)
}

const orphanFile = "/tmp/conformance-orphan"

// grows reports whether an orphan still adds to its file.
func (c *check) grows(target sdk.Target) bool {
	before := len(c.exec(target, c.commands().Read(orphanFile)))
	c.sleep(time.Second)
	return len(c.exec(target, c.commands().Read(orphanFile))) > before
}

// orphaned waits until the orphan has begun.
func (c *check) orphaned(target sdk.Target) {
	if !c.soon(func() bool {
		got, err := c.execute(c.kit.b, sdk.ExecOptions{Target: target, Command: c.commands().Read(orphanFile)})
		return err == nil && got.ExitCode == 0 && got.stdout != ""
	}) {
		c.cannot("the command left no child that adds to %s", orphanFile)
	}
}

func execTimeoutTree(c *check) {
	_, target := c.ready(c.creation())
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Orphan(orphanFile), Timeout: 2 * time.Second})
	c.failIf(err != nil || !got.TimedOut, "%s (timed out: %v, %v)", got, got.TimedOut, err)
	c.orphaned(target)
	c.failIf(c.grows(target), "a child outlived the timeout")
}

// cancelled runs a command, ends its context when it is under way, and
// returns the error of exec.
func (c *check) cancelled(target sdk.Target, command []string, underWay func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	done := make(chan error, 1)
	execer := ability[sdk.Execer](c, c.kit.a)
	go func() {
		_, err := execer.Exec(ctx, sdk.ExecOptions{Target: target, Command: command})
		done <- err
	}()
	underWay()
	cancel()
	select {
	case err := <-done:
		c.is(err, "a command whose context ended", context.Canceled)
	case <-time.After(c.kit.suite.Timing.Grace):
		c.fail("exec did not return within %s of its context's end", c.kit.suite.Timing.Grace)
	}
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
	c.failIf(err != nil || got.ExitCode != 0, "afterwards the sandbox is no longer usable: %s, %v", got, err)
}

func execCancel(c *check) {
	_, target := c.ready(c.creation())
	c.cancelled(target, c.commands().Sleep(10*c.kit.suite.Timing.Grace), func() { c.sleep(300 * time.Millisecond) })
}

func execCancelTree(c *check) {
	_, target := c.ready(c.creation())
	c.cancelled(target, c.commands().Orphan(orphanFile), func() { c.orphaned(target) })
	c.failIf(c.grows(target), "a child outlived the context")
}

func execConcurrent(c *check) {
	_, target := c.ready(c.creation())
	got, errs := make([]output, 6), make([]error, 6)
	execers := []sdk.Execer{ability[sdk.Execer](c, c.kit.a), ability[sdk.Execer](c, c.kit.b)}
	// Each gets its input only when all have begun: one after the other they
	// would never end.
	var begun, done sync.WaitGroup
	begun.Add(len(got))
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.kit.suite.Timing.Grace)
	defer cancel()
	for i := range got {
		input, feed := io.Pipe()
		done.Go(func() {
			var stdout limited
			result, err := execers[i%2].Exec(ctx, sdk.ExecOptions{Target: target, Command: c.commands().Cat(), Stdin: input, Stdout: &stdout})
			_ = input.CloseWithError(io.ErrClosedPipe) // so that the writer ends, too
			got[i], errs[i] = output{result, stdout.String(), ""}, err
		})
		done.Go(func() {
			_, err := fmt.Fprintf(feed, "first %d\n", i)
			begun.Done()
			begun.Wait()
			if err == nil {
				_, err = fmt.Fprintf(feed, "second %d\n", i)
			}
			_ = feed.CloseWithError(err)
		})
	}
	done.Wait()
	for i, o := range got {
		want := fmt.Sprintf("first %d\nsecond %d\n", i, i)
		c.failIf(errs[i] != nil || o.stdout != want || o.ExitCode != 0, "command %d: %s, %v", i, o, errs[i])
	}
}

func execSecondInstance(c *check) {
	_, target := c.ready(c.creation())
	c.exec(target, c.commands().Write("/tmp/conformance-shared", "shared"))
	got, err := c.execute(c.kit.b, sdk.ExecOptions{Target: target, Command: c.commands().Read("/tmp/conformance-shared")})
	c.failIf(err != nil || got.stdout != "shared", "%s, %v", got, err)
}

func execEmpty(c *check) {
	_, target := c.ready(c.creation())
	_, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target})
	c.is(err, "an empty command", sdk.ErrInvalid)
}
