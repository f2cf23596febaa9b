// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// The stream of a command: Connect's envelopes, each five bytes and a JSON
// message.

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The flags of an envelope.
const (
	flagMessage = 0x00
	flagEnd     = 0x02
)

const (
	envelopeHead = 5
	// maxFrame bounds a message: envd's hold 32 KiB of output.
	maxFrame = 4 << 20
)

func envelope(payload []byte) []byte {
	frame := make([]byte, envelopeHead, envelopeHead+len(payload))
	frame[0] = flagMessage
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload))) //nolint:gosec // a command is bounded far below
	return append(frame, payload...)
}

// event is what happened to a process.
type event struct {
	Start *struct {
		PID int `json:"pid"`
	} `json:"start"`
	Data *struct {
		Stdout []byte `json:"stdout"`
		Stderr []byte `json:"stderr"`
	} `json:"data"`
	End *processEnd `json:"end"`
}

// processEnd is the end of a process. Its code is left out when it is 0, and
// exited when it is false.
type processEnd struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
}

// signals are the names by which envd tells a signal.
var signals = map[string]int{
	"hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5, "aborted": 6, "bus error": 7,
	"floating point exception": 8, "killed": 9, "user defined signal 1": 10, "segmentation fault": 11, "user defined signal 2": 12,
	"broken pipe": 13, "alarm clock": 14, "terminated": 15,
}

// code is the exit code: 128+n where signal n ended the process.
func (e processEnd) code() int {
	if e.Exited {
		return e.ExitCode
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(e.Status, "signal: "), " (")
	if n, ok := signals[name]; ok {
		return 128 + n
	}
	return 128
}

// events reads the stream of a process.
type events struct {
	body io.ReadCloser
}

// errCut means that a stream ended before it said so.
var errCut = errors.New("the stream of the command was cut")

// streamError is an error that envd ended a stream with.
type streamError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *streamError) Error() string { return e.Code + ": " + clip(e.Message) }

// kind is what it is for sandboxer.
func (e *streamError) kind() error {
	switch e.Code {
	case "invalid_argument":
		return sdk.ErrInvalid
	case "unauthenticated", "permission_denied":
		return sdk.ErrUnauthenticated
	case "not_found":
		return sdk.ErrNotFound
	case "resource_exhausted":
		return sdk.ErrQuota
	}
	return sdk.ErrUnreachable
}

// next returns the next event; io.EOF after the last frame of a stream that
// ended as it should.
func (s *events) next() (event, error) {
	for {
		var head [envelopeHead]byte
		if _, err := io.ReadFull(s.body, head[:]); err != nil {
			return event{}, fmt.Errorf("%w: %w", errCut, noEOF(err))
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size > maxFrame {
			return event{}, fmt.Errorf("%w: a frame of %d bytes", errCut, size)
		}
		payload := make([]byte, size)
		if _, err := io.ReadFull(s.body, payload); err != nil {
			return event{}, fmt.Errorf("%w: %w", errCut, noEOF(err))
		}
		switch head[0] {
		case flagMessage:
			var message struct{ Event event }
			if err := json.Unmarshal(payload, &message); err != nil {
				return event{}, fmt.Errorf("%w: %w", errCut, err)
			}
			return message.Event, nil
		case flagEnd:
			var last struct{ Error *streamError }
			if err := json.Unmarshal(payload, &last); err != nil {
				return event{}, fmt.Errorf("%w: %w", errCut, err)
			}
			if last.Error != nil {
				return event{}, &sdk.Error{Kind: last.Error.kind(), Message: "the sandbox ended the command", Err: last.Error}
			}
			return event{}, io.EOF
		default:
			return event{}, fmt.Errorf("%w: a frame with the flags %d", errCut, head[0])
		}
	}
}

// noEOF keeps the end of a connection from being taken for that of a stream.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *events) close() error { return s.body.Close() }
