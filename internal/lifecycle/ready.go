// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// pollEvery is the pause between two looks at a thing that gives no event.
	pollEvery = 100 * time.Millisecond
	// checkBudget bounds one look of a readiness check.
	checkBudget = 5 * time.Second
	// outputKept bounds the output of a step that is kept for its diagnostic.
	outputKept = 8 << 10
	// logLines is how many of the last log lines are put into a diagnostic.
	logLines = 20
)

// bringUp waits until the sandbox runs, runs the setup steps, waits for the
// readiness check, and returns the sandbox as it then is.
func (m *Manager) bringUp(ctx context.Context, at place, plan createPlan) (Sandbox, error) {
	ext, err := m.open(ctx, at.backend)
	if err != nil {
		return Sandbox{}, err
	}
	budget := m.readyBudget(plan.profile)
	starting, cancel := context.WithTimeout(ctx, budget)
	running, err := m.awaitRunning(starting, at)
	cancel()
	if err != nil {
		return Sandbox{}, m.withLogs(ctx, ext, at, budgetError(ctx, err, "it did not start", budget))
	}
	if plan.setup && len(plan.profile.Setup) > 0 {
		setting, cancel := context.WithTimeout(ctx, m.settings.Budgets.Setup)
		err := m.setup(setting, ext, at, plan.profile.Setup)
		cancel()
		if err != nil {
			return Sandbox{}, budgetError(ctx, err, "setup did not end", m.settings.Budgets.Setup)
		}
	}
	// What goes on in the middle of its work has said that it is ready before,
	// into the log of its source.
	if ready := plan.profile.Ready; ready != nil && (!plan.resumes || ready.Log == "") {
		running.Profile = plan.profile
		if err := m.awaitReadiness(ctx, ext, at, running); err != nil {
			return Sandbox{}, err
		}
	}
	known, err := m.append(ctx, at.id, ledger.Event{Type: ledger.Ready})
	if err != nil {
		return Sandbox{}, err
	}
	return viewBackend(at.backend, running, &known.record), nil
}

// budgetError tells the end of a step's own budget from the end of the
// caller's context.
func budgetError(ctx context.Context, err error, what string, budget time.Duration) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s within %s: %w", what, budget, err)
	}
	return err
}

// look asks for a sandbox once. An extension that died is started anew once:
// the sandbox does not depend on it.
func (m *Manager) look(ctx context.Context, at place) (sdk.Sandbox, error) {
	for again := false; ; again = true {
		ext, err := m.open(ctx, at.backend)
		if err != nil {
			return sdk.Sandbox{}, err
		}
		got, err := ext.Get(ctx, sdk.GetOptions{Target: at.target(m.settings.Fleet)})
		if again || !errors.Is(err, sdk.ErrCrashed) {
			return got.Sandbox, err
		}
	}
}

// awaitRunning waits until the backend says that the sandbox runs.
func (m *Manager) awaitRunning(ctx context.Context, at place) (sdk.Sandbox, error) {
	for {
		got, err := m.look(ctx, at)
		if err != nil {
			return sdk.Sandbox{}, err
		}
		switch got.Status {
		case sdk.StatusReady:
			return got, nil
		case sdk.StatusCreating:
		default:
			return sdk.Sandbox{}, fmt.Errorf("its status is %s%s", got.Status, because(got.Reason))
		}
		if err := m.clock.Sleep(ctx, pollEvery); err != nil {
			return sdk.Sandbox{}, err
		}
	}
}

// awaitReadiness waits for the readiness check of a sandbox that runs.
func (m *Manager) awaitReadiness(ctx context.Context, ext sdk.Extension, at place, found sdk.Sandbox) error {
	budget := m.readyBudget(found.Profile)
	checking, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	if err := m.awaitReady(checking, at, found.Profile, found.Endpoints); err != nil {
		return m.withLogs(ctx, ext, at, budgetError(ctx, err, "the readiness check did not pass", budget))
	}
	return nil
}

// readyBudget is how long a sandbox may take to become ready.
func (m *Manager) readyBudget(p sdk.Profile) time.Duration {
	if p.Ready == nil || p.Ready.Timeout == "" {
		return m.settings.Budgets.Ready
	}
	// A validated profile's durations parse.
	budget, _ := sandbox.ParseDuration(p.Ready.Timeout)
	return budget
}

// setup runs the steps in their order; the first that fails ends it, with
// its output in the error.
func (m *Manager) setup(ctx context.Context, ext sdk.Extension, at place, steps [][]string) error {
	execer, ok := sdk.As[sdk.Execer](ext)
	if !ok {
		return sdk.Unsupported("setup", "backend %q runs no commands", at.backend)
	}
	for i, step := range steps {
		output := &tail{most: outputKept}
		result, err := execer.Exec(ctx, sdk.ExecOptions{Target: at.target(m.settings.Fleet), Command: step, Stdout: output, Stderr: output})
		if err != nil {
			return fmt.Errorf("setup[%d] (%.80q): %w%s", i, step[0], err, output.quote())
		}
		if result.ExitCode != 0 {
			return &sdk.Error{Kind: sdk.ErrInvalid, Path: fmt.Sprintf("setup[%d]", i),
				Message: fmt.Sprintf("%.80q ended with exit code %d%s", step[0], result.ExitCode, output.quote())}
		}
	}
	return nil
}

// awaitReady repeats the readiness check until it passes.
func (m *Manager) awaitReady(ctx context.Context, at place, p sdk.Profile, endpoints map[string]string) error {
	var last error
	for {
		ext, err := m.open(ctx, at.backend)
		if err != nil {
			return err
		}
		check, err := m.readyCheck(ext, at, p, endpoints)
		if err != nil {
			return err
		}
		looking, cancel := context.WithTimeout(ctx, checkBudget)
		err = check(looking)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if err := m.clock.Sleep(ctx, pollEvery); err != nil {
			if last != nil {
				return fmt.Errorf("%w (the last look: %w)", err, last)
			}
			return err
		}
		// A sandbox that has ended will not become ready any more.
		if got, err := m.look(ctx, at); err == nil && got.Status != sdk.StatusReady {
			return fmt.Errorf("it ended before it was ready: its status is %s%s", got.Status, because(got.Reason))
		}
	}
}

// readyCheck returns one look of a profile's readiness check.
func (m *Manager) readyCheck(ext sdk.Extension, at place, p sdk.Profile, endpoints map[string]string) (func(context.Context) error, error) {
	target := at.target(m.settings.Fleet)
	switch r := p.Ready; {
	case r.HTTP != nil:
		address, err := endpointOf(p, endpoints, r.HTTP.Port, "ready.http.port")
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			return lookHTTP(ctx, "http://"+address+"/"+strings.TrimPrefix(r.HTTP.Path, "/"))
		}, nil
	case r.TCP != nil:
		address, err := endpointOf(p, endpoints, r.TCP.Port, "ready.tcp.port")
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return lookTCP(ctx, address) }, nil
	case r.Log != "":
		logger, ok := sdk.As[sdk.Logger](ext)
		if !ok {
			return nil, sdk.Unsupported("ready.log", "backend %q keeps no logs", at.backend)
		}
		pattern, err := regexp.Compile(r.Log)
		if err != nil {
			return nil, sdk.Invalid("ready.log", "%s", err)
		}
		return func(ctx context.Context) error {
			output := &tail{most: 1 << 20}
			if _, err := logger.Logs(ctx, sdk.LogsOptions{Target: target, Output: output}); err != nil {
				return err
			}
			for line := range bytes.Lines(output.kept) {
				if pattern.Match(bytes.TrimRight(line, "\r\n")) {
					return nil
				}
			}
			return fmt.Errorf("no line of the log matches %q", r.Log)
		}, nil
	default:
		execer, ok := sdk.As[sdk.Execer](ext)
		if !ok {
			return nil, sdk.Unsupported("ready.exec", "backend %q runs no commands", at.backend)
		}
		return func(ctx context.Context) error {
			output := &tail{most: outputKept}
			result, err := execer.Exec(ctx, sdk.ExecOptions{Target: target, Command: r.Exec, Timeout: checkBudget, Stdout: output, Stderr: output})
			if err != nil {
				return err
			}
			if result.TimedOut || result.ExitCode != 0 {
				return fmt.Errorf("%.80q ended with exit code %d%s", r.Exec[0], result.ExitCode, output.quote())
			}
			return nil
		}, nil
	}
}

// endpointOf returns the published address of a port.
func endpointOf(p sdk.Profile, endpoints map[string]string, port int, at string) (string, error) {
	for name, number := range p.Ports {
		if number == port && endpoints[name] != "" {
			return endpoints[name], nil
		}
	}
	return "", sdk.Invalid(at, "port %d is not published: name it in ports", port)
}

// lookHTTP asks once. The client is made for the one look, so that nothing
// of the environment (a proxy) and no connection of a former look decides.
func lookHTTP(ctx context.Context, url string) error {
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10)
	if response.StatusCode < 200 || response.StatusCode > 399 {
		return fmt.Errorf("%s answered %d", url, response.StatusCode)
	}
	return nil
}

// lookTCP connects once. A forwarder may accept for a server that is not
// there yet and then close: a connection counts when it stays open for a
// moment or the server speaks first.
func lookTCP(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(pollEvery)); err != nil {
		return err
	}
	var timeout net.Error
	if _, err := conn.Read(make([]byte, 1)); err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
		return fmt.Errorf("%s closed the connection: %w", address, err)
	}
	return nil
}

// withLogs adds the last log lines of the main process to an error.
func (m *Manager) withLogs(ctx context.Context, ext sdk.Extension, at place, cause error) error {
	logger, ok := sdk.As[sdk.Logger](ext)
	if !ok {
		return cause
	}
	reading, cancel := detached(ctx, checkBudget)
	defer cancel()
	output := &tail{most: outputKept}
	_, err := logger.Logs(reading, sdk.LogsOptions{Target: at.target(m.settings.Fleet), Tail: logLines, Output: output})
	if err != nil || len(output.kept) == 0 {
		return cause
	}
	return fmt.Errorf("%w%s", cause, output.quote())
}

// tail keeps the last bytes of what is written to it.
type tail struct {
	most int
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// quote returns the output for an error text: a sandbox's output is hostile,
// so control characters are made visible.
func (t *tail) quote() string {
	text := strings.TrimSpace(string(t.kept))
	if text == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString("; the last output:\n")
	for line := range strings.SplitSeq(text, "\n") {
		quoted := strconv.Quote(strings.TrimRight(line, "\r"))
		b.WriteString("  " + strings.ReplaceAll(quoted[1:len(quoted)-1], "\\\"", "\"") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// WaitOptions are the options of [Manager.Wait].
type WaitOptions struct {
	Backend string
}

// Wait returns when a sandbox is ready, and fails when it can't become ready
// any more. It watches; whoever creates the sandbox runs its setup and its
// readiness check.
func (m *Manager) Wait(ctx context.Context, id string, opts WaitOptions) (Sandbox, error) {
	for {
		view, err := m.Get(ctx, id, GetOptions{Backend: opts.Backend})
		if err != nil {
			return view, err
		}
		switch view.Status {
		case sdk.StatusReady:
			return view, nil
		case sdk.StatusCreating:
		default:
			return view, sdk.Errorf(sdk.ErrConflict, "sandbox %s on backend %q will not become ready: its status is %s%s", id, view.Backend, view.Status, because(view.Reason))
		}
		if err := m.clock.Sleep(ctx, pollEvery); err != nil {
			return view, fmt.Errorf("sandbox %s on backend %q is not ready: %w", id, view.Backend, err)
		}
	}
}
