// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// The copy of this binary that drives a sandbox. The folder that a program
// was started from may be deleted or updated while its sandboxes live, so a
// supervisor runs from a copy under the state directory, named by digest: a
// sandbox is driven by the binary that made it.

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
)

// programCopy is a copy of the binary that stays until it is closed.
type programCopy struct {
	dir    string
	digest string
	held   *os.File
}

func (p *programCopy) Close() { p.held.Close() }

// program returns the copy of this binary, which is made when missing.
func (s store) program() (*programCopy, error) {
	info, err := os.Stat(s.self)
	if err != nil {
		return nil, err
	}
	// Hashing 40 MB at each create would cost more than the rest of it. The
	// change time can't be set by anyone, so these name the content.
	st := info.Sys().(*syscall.Stat_t)
	key := s.path("bin", fmt.Sprintf("of-%x-%x-%x-%x.%09d", st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec))
	if digest, err := os.Readlink(key); err == nil && isDigest(digest) {
		if p, err := s.holdProgram(digest); err == nil {
			return p, nil
		}
	}
	for range 3 {
		digest, err := s.installProgram()
		if err != nil {
			return nil, fmt.Errorf("copy this binary to the state directory: %w", err)
		}
		_ = os.Remove(key)
		if err := os.Symlink(digest, key); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		p, err := s.holdProgram(digest)
		if !errors.Is(err, os.ErrNotExist) {
			return p, err
		}
		// Someone made room between the two.
	}
	return nil, errors.New("the copy of this binary in the state directory is removed as soon as it is made")
}

func isDigest(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// holdProgram returns a copy that is there.
func (s store) holdProgram(digest string) (*programCopy, error) {
	dir := s.path("bin", digest)
	f, err := record.HoldShared(filepath.Join(dir, supervisor.ProgramName))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // the order that copies are removed in
	return &programCopy{dir, digest, f}, nil
}

func (s store) installProgram() (digest string, err error) {
	temp, lock, err := s.beginFor(func(string) error { return nil }, "bin", record.WriterLock)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	defer os.RemoveAll(temp)
	in, err := os.Open(s.self)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(temp, supervisor.ProgramName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, hash), in)
	if err := errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return "", err
	}
	for _, name := range runsc.SidecarNames() {
		if err := os.Symlink(supervisor.ProgramName, filepath.Join(temp, name)); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	digest = hex.EncodeToString(hash.Sum(nil))
	target := s.path("bin", digest)
	if err := os.Rename(temp, target); err != nil {
		if _, statErr := os.Stat(filepath.Join(target, supervisor.ProgramName)); statErr == nil {
			return digest, nil // someone else was faster, with the same content
		}
		return "", err
	}
	return digest, record.SyncDir(s.path("bin"))
}

// checkProgram names what is wrong with the way this binary was built.
func (s store) checkProgram() (problem, advice string) {
	if !runsc.Compiled {
		return "gVisor is not compiled into this binary", "use a release build, or build extensions/local with Go 1.26 for linux on amd64 or arm64"
	}
	f, err := elf.Open(s.self)
	if err != nil {
		return "this binary can't be read: " + err.Error(), ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			interp, _ := io.ReadAll(io.LimitReader(p.Open(), 256))
			return fmt.Sprintf("this binary is dynamically linked (%s), and a sandbox starts it again where there is no loader", strings.TrimRight(string(interp), "\x00")),
				"build it with CGO_ENABLED=0"
		}
	}
	return "", ""
}
