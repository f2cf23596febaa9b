// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxKnownHosts bounds a file of known hosts, in bytes.
const maxKnownHosts = 16 << 20

func readKnownHosts(file string) ([]byte, error) {
	handle, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, maxKnownHosts+1))
	if err == nil && len(content) > maxKnownHosts {
		err = fmt.Errorf("%s is larger than %d MiB", file, maxKnownHosts>>20)
	}
	return content, err
}

// usableLines empties the lines that the parser would refuse the whole file
// for: kinds of key that are gone, markers that it does not know, damage. A
// host whose only line is one of these is unknown, and so refused. Lines keep
// their numbers. What may say that a key is revoked is never passed over.
//
// It also empties the lines that exclude the host of this name, as known_hosts
// has it: on a port other than 22, the library would find such a line by its
// wildcard alone.
func usableLines(content []byte, name string) ([]byte, error) {
	kept := make([]byte, 0, len(content))
	number := 0
	for line := range bytes.Lines(content) {
		number++
		err := checkLine(bytes.TrimSuffix(line, []byte("\n")))
		switch {
		case err == nil && !excludes(line, name):
			kept = append(kept, line...)
		case err == nil:
			kept = append(kept, '\n')
		case bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("@revoked")) && !errors.Is(err, errKind):
			return nil, fmt.Errorf("line %d: %w", number, err)
		default:
			kept = append(kept, '\n')
		}
	}
	return kept, nil
}

// errKind is wrapped by the error for a key of a kind that is not supported.
var errKind = errors.New("a kind of key that is not supported")

// checkLine tells whether the parser takes a line. Its rules are repeated
// here because it only reads whole files; a test compares the two.
func checkLine(line []byte) error {
	// The scanner behind the parser takes lines of up to 64 KiB.
	if len(line) >= 64<<10 {
		return errors.New("longer than 64 KiB")
	}
	line = bytes.Trim(bytes.TrimSuffix(line, []byte("\r")), " \t")
	if len(line) == 0 || line[0] == '#' {
		return nil
	}
	word, rest := nextWord(line)
	revoked := string(word) == "@revoked"
	if revoked || string(word) == "@cert-authority" {
		word, rest = nextWord(rest)
	}
	hosts := string(word)
	kind, rest := nextWord(rest)
	encoded, _ := nextWord(rest)
	if len(encoded) == 0 {
		return errors.New("neither a host, a kind of key and a key, nor a comment")
	}
	if hosts[0] == '@' {
		return fmt.Errorf("the marker %q is not known", clip(hosts))
	}
	blob, err := base64.StdEncoding.DecodeString(string(encoded))
	if err != nil {
		return errors.New("the key is not base64")
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		if inner := (struct {
			Kind string
			Rest []byte `ssh:"rest"`
		}{}); ssh.Unmarshal(blob, &inner) == nil && inner.Kind == string(kind) {
			return fmt.Errorf("%w: %q", errKind, clip(inner.Kind))
		}
		return errors.New("the key is damaged")
	}
	if key.Type() != string(kind) {
		return fmt.Errorf("the key is of the kind %q, not %q", clip(key.Type()), clip(string(kind)))
	}
	if revoked {
		return nil // of any host
	}
	return checkHosts(hosts)
}

// checkHosts checks the hosts of a line: a hash, or a list of patterns.
func checkHosts(hosts string) error {
	if hosts[0] == '|' {
		parts := strings.Split(hosts, "|")
		if len(parts) != 4 || parts[1] != "1" {
			return errors.New("the hashed host is not of the form |1|SALT|HASH")
		}
		for _, part := range parts[2:] {
			if _, err := base64.StdEncoding.DecodeString(part); err != nil {
				return errors.New("the hashed host is not base64")
			}
		}
		return nil
	}
	for pattern := range strings.SplitSeq(hosts, ",") {
		if pattern == "" {
			continue
		}
		if pattern = strings.TrimPrefix(pattern, "!"); pattern == "" {
			return errors.New("a negation without a host")
		}
		if pattern[0] == '[' {
			if _, _, err := net.SplitHostPort(pattern); err != nil {
				return errors.New("the host in brackets has no port")
			}
		}
	}
	return nil
}

// excludes tells whether a line that the parser takes has a negated pattern
// for a host. What is revoked is so for all hosts.
func excludes(line []byte, name string) bool {
	hosts, rest := nextWord(bytes.Trim(line, " \t"))
	if string(hosts) == "@revoked" || len(hosts) > 0 && hosts[0] == '#' {
		return false
	}
	if string(hosts) == "@cert-authority" {
		hosts, _ = nextWord(rest)
	}
	for pattern := range strings.SplitSeq(string(hosts), ",") {
		if pattern, negated := strings.CutPrefix(pattern, "!"); negated && matchPattern(pattern, name) {
			return true
		}
	}
	return false
}

func nextWord(line []byte) (word, rest []byte) {
	end := bytes.IndexAny(line, " \t")
	if end < 0 {
		return line, nil
	}
	return line[:end], bytes.Trim(line[end:], " \t")
}

// accept adds the key of a host that is not known. Several processes may do
// so at once: the file is read again under a lock, and whoever comes second
// verifies against what the first has written.
func (v *verifier) accept(address string, remote net.Addr, key ssh.PublicKey) error {
	fail := func(err error) error {
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: v.target.at + ".known_hosts_file", Message: "the key of " + address + " can't be added", Err: err}
	}
	if v.write == "" {
		return fail(errors.New("there is no file of known hosts"))
	}
	if err := os.MkdirAll(filepath.Dir(v.write), 0o700); err != nil {
		return fail(err)
	}
	file, err := os.OpenFile(v.write, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fail(err)
	}
	defer file.Close() // ends the lock
	ctx, cancel := context.WithTimeout(context.Background(), v.target.timeout)
	defer cancel()
	if err := lock(ctx, file); err != nil {
		return fail(err)
	}
	if err := v.read(); err != nil {
		return err
	}
	err = v.db.HostKeyCallback()(address, remote, key)
	if !knownhosts.IsHostUnknown(err) {
		return v.explain(err, key)
	}
	if err := appendLine(file, oneLine(v.target.address(), key)); err != nil {
		return fail(err)
	}
	return nil
}

// appendLine adds a line to a file, after a line break where the last line
// has none.
func appendLine(file *os.File, line string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	line += "\n"
	if size := info.Size(); size > 0 {
		last := make([]byte, 1)
		if _, err := file.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = "\n" + line
		}
	}
	written, err := file.WriteString(line)
	if err != nil && written > 0 {
		// Half a line must not stay: it would be a damaged one.
		return errors.Join(err, file.Truncate(info.Size()))
	}
	return errors.Join(err, file.Sync())
}

// lock waits for the lock of a file.
func lock(ctx context.Context, file *os.File) error {
	for {
		locked, err := tryLock(file)
		if locked || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process holds the lock of %s", file.Name())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
