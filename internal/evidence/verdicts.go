// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxVerdict bounds a verdict at rest, in bytes.
const maxVerdict = 1 << 20

// Verdicts keeps the last verdict about each profile's revision at each
// instance of a backend, a file each.
type Verdicts struct {
	Dir string // made when a verdict is kept
}

// ErrNoVerdict says that there is no verdict about something.
var ErrNoVerdict = errors.New("there is no verdict")

// file is the same for the same thing, and holds nothing that a file system
// could take offence at.
func (s Verdicts) file(about About) string {
	// Strings always encode, and the encoding keeps them apart.
	key, _ := json.Marshal(about)
	digest := sha256.Sum256(key)
	return filepath.Join(s.Dir, hex.EncodeToString(digest[:])+verdictSuffix)
}

const verdictSuffix = ".json"

// Load returns the last verdict about something, however old. A file that is
// damaged, or is about something else, is an error and no verdict.
func (s Verdicts) Load(about About) (Isolation, error) {
	file := s.file(about)
	content, err := ReadBounded(file, maxVerdict)
	if errors.Is(err, fs.ErrNotExist) {
		return Isolation{}, ErrNoVerdict
	}
	if err != nil {
		return Isolation{}, err
	}
	v, err := decodeVerdict(content)
	if err == nil && v.About != about {
		err = errors.New("it is about something else")
	}
	if err != nil {
		return Isolation{}, fmt.Errorf("the verdict in %s can't be used: %w", file, err)
	}
	return v, nil
}

func decodeVerdict(content []byte) (v Isolation, err error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	// A field that is not known here could change what the others say.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		return Isolation{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Isolation{}, errors.New("something follows it")
	}
	if err := v.check(); err != nil {
		return Isolation{}, err
	}
	return v, nil
}

// Save keeps a verdict in place of the last one about the same thing, whole
// or not at all. What has expired by then is removed.
func (s Verdicts) Save(v Isolation) error {
	if err := v.check(); err != nil {
		return fmt.Errorf("keep a verdict: %w", err)
	}
	content, err := json.Marshal(v)
	if err == nil && len(content) > maxVerdict {
		err = fmt.Errorf("it is larger than %d bytes", maxVerdict)
	}
	if err == nil {
		err = os.MkdirAll(s.Dir, 0o700)
	}
	if err == nil {
		err = replace(s.file(v.About), append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep a verdict: %w", err)
	}
	s.tidy(v.At)
	return nil
}

// replace puts a file in place, whole or not at all, with the mode 0600.
func replace(name string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // it is gone where it was renamed
	_, err = temporary.Write(content)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), name)
}

// tidy removes verdicts that have expired, so that the directory does not grow
// with every revision. One that can't be read stays: it is for people to see.
func (s Verdicts) tidy(now time.Time) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return // the next one tries again
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !strings.HasSuffix(entry.Name(), verdictSuffix) {
			continue
		}
		file := filepath.Join(s.Dir, entry.Name())
		content, err := ReadBounded(file, maxVerdict)
		if err != nil {
			continue
		}
		if v, err := decodeVerdict(content); err == nil && !now.Before(v.ExpiresAt) {
			_ = os.Remove(file)
		}
	}
}
