// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

// A line: its form, its hash, its bounds.

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	formatVersion = 1

	maxMessage = 4 << 10
	maxData    = 64 << 10
	// maxLine has room for the largest profile document and the rest.
	maxLine = sandbox.MaxDocument + 1<<20
	// maxLog bounds a log; what ends a life may go on to maxLogClosing.
	maxLog        = 4 * maxLine
	maxLogClosing = maxLog + 4<<20

	hashOpen  = `,"hash":"sha256:`
	hashClose = `"}`
	hashTail  = len(hashOpen) + 2*sha256.Size + len(hashClose)
)

// wire is the JSON of a line in the order of its fields: version first, hash
// last.
type wire struct {
	Version int `json:"v"`
	Event
	Hash string `json:"hash,omitempty"`
}

// encodeLine returns an event as a line, newline included. PrevHash is part
// of it; Hash is computed.
func encodeLine(e Event) ([]byte, error) {
	if len(e.Message) > maxMessage {
		e.Message = strings.ToValidUTF8(e.Message[:maxMessage], "") + "…"
	}
	if len(e.Data) > maxData {
		return nil, sdk.Invalid("data", "an event's data of %d bytes is larger than %d", len(e.Data), maxData)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(wire{Version: formatVersion, Event: e}); err != nil {
		return nil, sdk.Invalid("event", "it has no JSON form: %s", err)
	}
	body := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	sum := sha256.Sum256(body)
	line := append(body[:len(body)-1], hashOpen...)
	line = hex.AppendEncode(line, sum[:])
	line = append(line, hashClose+"\n"...)
	if len(line) > maxLine {
		return nil, sdk.Invalid("event", "a line of %d bytes is larger than %d", len(line), maxLine)
	}
	return line, nil
}

// newerVersion is the fault of a line that is intact but in a newer format.
type newerVersion int

func (v newerVersion) Error() string { return fmt.Sprintf("format version %d", int(v)) }

// checkHash verifies a line (without its newline) against its own hash.
func checkHash(line []byte) error {
	if len(line) > maxLine {
		return fmt.Errorf("longer than %d bytes", maxLine)
	}
	cut := len(line) - hashTail
	if cut < 1 || !bytes.HasPrefix(line[cut:], []byte(hashOpen)) || !bytes.HasSuffix(line, []byte(hashClose)) {
		return errors.New("it does not end with a hash")
	}
	digest := sha256.New()
	digest.Write(line[:cut])
	digest.Write([]byte("}"))
	var want [2 * sha256.Size]byte
	hex.Encode(want[:], digest.Sum(nil))
	if !bytes.Equal(want[:], line[cut+len(hashOpen):len(line)-len(hashClose)]) {
		return errors.New("its hash does not match its content")
	}
	return nil
}

// parseLine reads a line without its newline. It returns a newerVersion for
// a line that is intact but in a newer format; any other error means damage.
func parseLine(line []byte) (Event, error) {
	if err := checkHash(line); err != nil {
		return Event{}, err
	}
	w, ok := decodeFast(line)
	if !ok {
		var err error
		if w, err = decodeAny(line); err != nil {
			return Event{}, err
		}
	}
	switch {
	case w.Version > formatVersion:
		return Event{}, newerVersion(w.Version)
	case w.Version < 1:
		return Event{}, errors.New("it has no format version")
	}
	w.Event.Hash = w.Hash
	return w.Event, nil
}

// decodeAny reads a line in whatever form JSON allows.
func decodeAny(line []byte) (w wire, err error) {
	if err := json.Unmarshal(line, &w); err != nil {
		// A newer format may have given a field another type.
		var only struct {
			Version int `json:"v"`
		}
		if json.Unmarshal(line, &only) == nil && only.Version > formatVersion {
			return w, newerVersion(only.Version)
		}
		return w, fmt.Errorf("it is not an event: %w", err)
	}
	return w, nil
}

// scan reads a log and checks its chain. good is the length of what holds;
// what follows it is a torn line, which no append ever acknowledged. An
// error is a newerVersion or says what is broken and where.
func scan(id string, content []byte) (events []Event, good int, err error) {
	prev := ""
	for number := 1; ; number++ {
		line, rest, complete := bytes.Cut(content[good:], []byte("\n"))
		if !complete {
			// A whole line whose newline has become something else was
			// acknowledged: that is damage, not a tear.
			if n := len(line); n > 0 && checkHash(line[:n-1]) == nil {
				return nil, 0, fmt.Errorf("line %d: its newline is damaged", number)
			}
			return events, good, nil
		}
		e, err := parseLine(line)
		var newer newerVersion
		switch {
		case errors.As(err, &newer):
			return nil, 0, newer
		case err != nil:
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		case e.ID != id:
			return nil, 0, fmt.Errorf("line %d: it is about %.40q", number, e.ID)
		case e.Sequence != int64(number):
			return nil, 0, fmt.Errorf("line %d: its sequence is %d", number, e.Sequence)
		case e.PrevHash != prev:
			return nil, 0, fmt.Errorf("line %d: it does not follow the line before", number)
		}
		prev = e.Hash
		events = append(events, e)
		good = len(content) - len(rest)
	}
}
