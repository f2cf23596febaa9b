// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// unreachable is the error for a host that could not be asked. It is never
// taken for the orderly end of a stream, whatever its cause.
func unreachable(host string, err error, format string, args ...any) *sdk.Error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &sdk.Error{Kind: sdk.ErrUnreachable, Message: "SSH host " + host + ": " + fmt.Sprintf(format, args...), Err: err}
}

// ErrLost is wrapped by the error for what was under way when the connection
// ended. The next use of the host makes a new one.
var ErrLost = errors.New("the connection was lost")

// lostError is a cause that is also ErrLost, whose words the message has.
type lostError struct{ error }

func (lostError) Is(target error) bool { return target == ErrLost }

func (e lostError) Unwrap() error { return e.error }

// RefusedError is wrapped by the error for a stream or a command that the
// server refused to open. The connection itself is well.
type RefusedError struct {
	What   string // the socket, the address, or "command"
	Reason ssh.RejectionReason
	Text   string // of the server
}

// Error returns the server's own words.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server refused %s: %s (%s)", e.What, clip(printable(e.Text)), e.Reason)
}

// refused explains why a server may not have opened a channel. Servers answer
// the same few words for different reasons, so all that fit are named.
func refused(host, what, kind string, answer *ssh.OpenChannelError) *sdk.Error {
	e := &sdk.Error{
		Kind: sdk.ErrUnreachable, Message: "SSH host " + host,
		Err: &RefusedError{What: what, Reason: answer.Reason, Text: answer.Message},
	}
	switch {
	case answer.Reason == ssh.ResourceShortage:
		e.Advice = "the server is short of resources"
	case kind == kindSession:
		e.Advice = "the server allows fewer sessions on a connection than are open (MaxSessions), or no commands at all"
	case answer.Reason == ssh.UnknownChannelType:
		e.Advice = "this SSH server can't forward to " + kind + "s"
	case kind == kindUnix:
		e.Advice = "there is no such socket, the user may not open it, or sshd_config forbids it (AllowStreamLocalForwarding, AllowTcpForwarding, DisableForwarding): only the server's log tells which"
	default:
		e.Advice = "nothing listens there, or sshd_config forbids it (AllowTcpForwarding, PermitOpen, DisableForwarding)"
	}
	return e
}

// The kinds of channel, as messages name them.
const (
	kindUnix    = "unix socket"
	kindTCP     = "TCP port"
	kindSession = "command"
)

// contextError returns the error of a call whose context ended. A deadline
// that passed means that the host did not answer in time.
func contextError(ctx context.Context, host, doing string) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return unreachable(host, err, "no answer in time while %s", doing)
	}
	return err
}

// printable replaces what a terminal or a log would act on.
func printable(text string) string {
	clean := []rune(text)
	for i, r := range clean {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			clean[i] = '·'
		}
	}
	return string(clean)
}
