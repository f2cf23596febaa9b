// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// DefaultRetention is how long a closed log stays, to tell why a sandbox died.
const DefaultRetention = 7 * 24 * time.Hour

// Ledger is the ledger in one directory. It is safe for concurrent use.
type Ledger struct {
	dir   string
	clock clock.Clock
	gate  gate // of the logs

	exclusive gate

	mu sync.Mutex
	id string
}

// New returns the ledger in dir. It touches nothing: the directory is made
// by the first append.
func New(dir string, clock clock.Clock) *Ledger { return &Ledger{dir: dir, clock: clock} }

// Dir returns the directory.
func (l *Ledger) Dir() string { return l.dir }

var ledgerIDPattern = regexp.MustCompile("^ldg-[0-9a-v]{26}$")

var ledgerIDEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// ID returns the id of this ledger, which it makes when there is none. An id
// file that does not hold an id is an error: a made-up one would break the
// chain of every lease record.
func (l *Ledger) ID() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != "" {
		return l.id, nil
	}
	name := filepath.Join(l.dir, "id")
	id, err := readID(name)
	if errors.Is(err, fs.ErrNotExist) {
		id, err = l.makeID(name)
	}
	if err != nil {
		return "", err
	}
	l.id = id
	return id, nil
}

func readID(name string) (string, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	id := strings.TrimSuffix(string(content), "\n")
	if !ledgerIDPattern.MatchString(id) {
		return "", fmt.Errorf("%s does not hold a ledger id; restore it from a backup, or remove it to begin a new chain", name)
	}
	return id, nil
}

// makeID makes the id file, or returns what another process made meanwhile.
func (l *Ledger) makeID(name string) (string, error) {
	if err := makeDirs(l.dir); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(l.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if err := lockFile(ctx, lock); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if id, err := readID(name); !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	var raw [16]byte
	// crypto/rand.Read never fails: it ends the program where the system has no randomness.
	_, _ = rand.Read(raw[:])
	id := "ldg-" + ledgerIDEncoding.EncodeToString(raw[:])
	if err := writeDurably(name, []byte(id+"\n")); err != nil {
		return "", err
	}
	return id, nil
}

// Filter selects records. Zero selects all.
type Filter struct {
	Fleet   string // logs that never learnt their fleet match only the empty one
	Backend string
	Kind    Kind
	Open    bool // only those that are open
}

func (f Filter) match(r Record) bool {
	return (f.Fleet == "" || f.Fleet == r.Fleet) &&
		(f.Backend == "" || f.Backend == r.Backend) &&
		(f.Kind == "" || f.Kind == r.Kind) &&
		(!f.Open || r.Open)
}

// checkID keeps everything but an id out of a file name.
func checkID(id string) error {
	if sandbox.ParseID(id) == nil || sandbox.ParseSnapshotID(id) == nil {
		return nil
	}
	return &sdk.Error{Kind: sdk.ErrInvalid, Path: "id", Message: fmt.Sprintf("%.80q is not a sandbox or snapshot id", id)}
}

func (l *Ledger) logPath(id string) string {
	return filepath.Join(l.dir, "logs", id[len(id)-1:], id+logSuffix)
}

const logSuffix = ".jsonl"
