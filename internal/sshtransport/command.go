// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxNoise bounds what a login shell may write before the script begins, in
// bytes.
const maxNoise = 64 << 10

// command is one session in which a script has begun.
type command struct {
	conn           *connection
	session        *ssh.Session
	token          string
	stdin          *input
	stdout, stderr *bufio.Reader // from the script's own output on, after begun
	pid            int           // of the script, and of its process group

	ended chan struct{} // closed when the session is over
	err   error         // after ended: how
}

// start runs a script. The caller has acquired a session, which is released
// when the session is over, however late that is.
func (c *connection) start(ctx context.Context, s script) (*command, error) {
	// The library takes no context for any of this, so it has to be left
	// behind when the peer does not answer; it ends with the connection.
	cmd, err := open(ctx, c, "a session", kindSession, func() (*command, error) {
		cmd, err := c.startSession(s)
		if err != nil {
			c.sessions.Release(1)
		}
		return cmd, err
	})
	if err != nil {
		return nil, err
	}
	if err := cmd.await(ctx); err != nil {
		cmd.abandon()
		return nil, err
	}
	return cmd, nil
}

func (c *connection) startSession(s script) (*command, error) {
	session, err := c.client.NewSession()
	if err != nil {
		return nil, err
	}
	cmd := &command{conn: c, session: session, token: s.token, ended: make(chan struct{})}
	stdin, inErr := session.StdinPipe()
	stdout, outErr := session.StdoutPipe()
	stderr, errErr := session.StderrPipe()
	err = errors.Join(inErr, outErr, errErr)
	if err == nil {
		err = session.Start(bootstrap)
	}
	if err != nil {
		session.Close()
		return nil, err
	}
	cmd.stdin, cmd.stdout, cmd.stderr = &input{to: stdin}, bufio.NewReader(stdout), bufio.NewReader(stderr)
	go func() {
		cmd.err = session.Wait()
		close(cmd.ended)
		c.settle()
		c.sessions.Release(1)
	}()
	if _, err := io.WriteString(cmd.stdin, s.frame()); err != nil {
		session.Close() // await finds out why: the output tells
	}
	return cmd, nil
}

// input is a stdin that one goroutine may close while another writes, which
// the library's may not.
type input struct {
	mu sync.Mutex
	to io.WriteCloser
}

// Write implements [io.Writer].
func (i *input) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.to.Write(p)
}

// Close implements [io.Closer]. It waits for a write that is under way.
func (i *input) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.to.Close()
}

// settle waits until sshd has let go of the sessions that are closed: it counts
// one until it has been through its loop after the last message of it, and
// refuses a new one that arrives before. An answer comes after that.
func (c *connection) settle() {
	c.client.SendRequest(keepaliveRequest, true, nil) //nolint:errcheck // a connection that has ended has no sessions
}

// Close ends the session without waiting for the peer.
func (cmd *command) Close() error {
	cmd.abandon()
	return nil
}

// abandon ends the session. It does not wait: the messages that end it are
// sent by goroutines that end with the connection at the latest.
func (cmd *command) abandon() {
	go cmd.session.Close()
}

// finish ends the session by the end of stdin, and by force when the command
// goes on. sshd counts a session until its process is gone, which a session
// that is closed by force does not tell: the next one would be refused.
func (cmd *command) finish() {
	go cmd.stdin.Close()
	select {
	case <-cmd.ended:
	case <-time.After(finishGrace):
	}
	cmd.session.Close()
}

// finishGrace is how long a command may go on after the end of its stdin.
const finishGrace = 5 * time.Second

// await waits until the script has begun on both outputs.
func (cmd *command) await(ctx context.Context) error {
	type begin struct {
		pid   int
		noise []byte
		err   error
	}
	begins := make(chan begin, 2)
	for _, output := range []*bufio.Reader{cmd.stdout, cmd.stderr} {
		go func() {
			pid, noise, err := skipNoise(output, cmd.token)
			begins <- begin{pid, noise, err}
		}()
	}
	var noise []byte
	var failed error
	for range 2 {
		select {
		case b := <-begins:
			cmd.pid = b.pid
			noise = append(noise, b.noise...)
			if failed = errors.Join(failed, b.err); failed != nil {
				cmd.abandon() // so that the other output ends too
			}
		case <-ctx.Done():
			return contextError(ctx, cmd.conn.host.Name(), "starting a command")
		}
	}
	if failed == nil {
		return nil
	}
	if cmd.conn.raw.ended() != nil {
		return cmd.conn.lost()
	}
	e := &sdk.Error{
		Kind: sdk.ErrUnsupported, Message: "SSH host " + cmd.conn.host.Name() + ": the account runs no commands",
		Advice: "give the user a login shell that writes nothing by itself, and the host sh, head and setsid",
	}
	if said := bytes.TrimSpace(noise); len(said) > 0 {
		e.Message += ": " + clip(printable(string(said)))
	}
	return e
}

// skipNoise reads as far as the line with the token, and returns the process
// that it names and what came before.
func skipNoise(r *bufio.Reader, token string) (pid int, noise []byte, err error) {
	for len(noise) < maxNoise {
		line, err := r.ReadSlice('\n')
		if at := bytes.Index(line, []byte(token+" ")); at >= 0 && err == nil {
			pid, err := strconv.Atoi(string(bytes.TrimSpace(line[at+len(token)+1:])))
			if err != nil || pid < 2 {
				return 0, noise, errors.New("no process is named")
			}
			return pid, noise, nil
		}
		noise = append(noise, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, noise, err
		}
	}
	return 0, noise, fmt.Errorf("the login shell writes more than %d KiB by itself", maxNoise>>10)
}

// head keeps the first bytes that are written to it.
type head struct {
	mu   sync.Mutex
	kept bytes.Buffer
	most int
	full bool // something was left out
}

// Write implements [io.Writer].
func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := min(len(p), h.most-h.kept.Len())
	h.kept.Write(p[:keep])
	h.full = h.full || keep < len(p)
	return len(p), nil
}

// String returns what was kept.
func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kept.String()
}
