// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

// Bounds on what is kept of an extension's output.
const (
	lineLimit    = 16 << 10 // bytes of one line
	wordsLines   = 6        // lines that an error quotes
	wordsLength  = 300      // bytes of each of them
	maskLeast    = 4        // a shorter secret would mask half of the log
	maskMost     = 1024     // values that are remembered for masking
	logAttrsMost = 64       // attributes of one line
)

// processLog takes the output of one process: it goes to the host's logger,
// secrets masked, and its last lines are kept for the error of a crash.
type processLog struct {
	logger hclog.Logger

	mu     sync.Mutex
	fault  string   // the first line of a panic
	last   []string // the last lines
	masked map[string]struct{}
	masks  *strings.Replacer
}

func newLog(logger hclog.Logger) *processLog {
	return &processLog{logger: logger, masked: map[string]struct{}{}, masks: strings.NewReplacer()}
}

// mask hides a value from here on.
func (l *processLog) mask(value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.masked[value]; known || len(value) < maskLeast || len(l.masked) >= maskMost {
		return
	}
	l.masked[value] = struct{}{}
	// The longest first, so that a value that contains another is masked whole.
	values := slices.SortedFunc(maps.Keys(l.masked), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v, "[masked]")
	}
	l.masks = strings.NewReplacer(pairs...)
}

// clean masks secrets in a text.
func (l *processLog) clean(s string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.masks.Replace(s)
}

// read takes the lines of a stream until it ends.
func (l *processLog) read(stream string, r io.Reader) {
	eachLine(r, lineLimit, func(line string) { l.line(stream, line) })
}

// writer returns a writer that takes the lines written to it.
func (l *processLog) writer(stream string) io.Writer { return &lineWriter{log: l, stream: stream} }

// lineWriter cuts what is written into lines.
type lineWriter struct {
	log    *processLog
	stream string
	rest   []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			w.rest = append(w.rest, b)
		}
		if b == '\n' || len(w.rest) >= lineLimit {
			w.log.line(w.stream, string(w.rest))
			w.rest = w.rest[:0]
		}
	}
	return len(p), nil
}

// line takes one line: a line of hclog's or slog's JSON form with its level,
// anything else at debug.
func (l *processLog) line(stream, line string) {
	line = l.clean(line)
	level, message, attrs, structured := parseLine(line)
	if !structured {
		level, message = hclog.Debug, line
	}
	if stream != "" {
		attrs = append(attrs, "stream", stream)
	}
	l.logger.Log(level, message, attrs...)
	if !structured || level >= hclog.Warn {
		l.remember(message)
	}
}

// remember keeps a line for the error of a crash.
func (l *processLog) remember(line string) {
	if len(line) > wordsLength {
		line = line[:wordsLength]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		l.fault = line
	}
	l.last = append(l.last, line)
	if len(l.last) > wordsLines {
		l.last = l.last[1:]
	}
}

// lastWords quotes the last lines for an error, or is empty.
func (l *processLog) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.last
	if l.fault != "" {
		// What follows a panic is its stack; the log has it.
		lines = []string{l.fault}
	}
	if len(lines) == 0 {
		return ""
	}
	quoted := make([]string, len(lines))
	for i, line := range lines {
		quoted[i] = fmt.Sprintf("%q", line)
	}
	return "; its last words: " + strings.Join(quoted, " ")
}

// parseLine reads a log line in JSON. Whatever is not one, or lies about the
// types of its fields, is just text.
func parseLine(line string) (level hclog.Level, message string, attrs []any, ok bool) {
	if !strings.HasPrefix(line, "{") || !utf8.ValidString(line) {
		return 0, "", nil, false
	}
	var fields map[string]any
	if json.Unmarshal([]byte(line), &fields) != nil {
		return 0, "", nil, false
	}
	message, isText := fields["@message"].(string)
	word, _ := fields["@level"].(string)
	level = hclog.LevelFromString(word)
	if !isText || level == hclog.NoLevel || level == hclog.Off {
		return 0, "", nil, false
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasPrefix(key, "@") || len(attrs) >= 2*logAttrsMost {
			continue
		}
		attrs = append(attrs, key, fields[key])
	}
	return level, message, attrs, true
}
