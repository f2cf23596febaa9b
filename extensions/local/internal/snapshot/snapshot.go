// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package snapshot keeps snapshots: a directory of files with a manifest. A
// snapshot is written beside its place and gets its name when it is complete
// and on disk, so that one that is there is whole.
package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Format is the version of the manifest that this program writes; a higher
// one is refused.
const Format = 1

// ErrGone is returned where there is no snapshot.
var ErrGone = errors.New("no snapshot")

const (
	manifestName = "manifest.json"
	maxManifest  = 16 << 20
)

// Manifest describes a snapshot. It holds no secret value; a memory
// snapshot's content may, and then says so.
type Manifest struct {
	Format          int               `json:"format"`
	ID              string            `json:"id"`
	Kind            sdk.SnapshotKind  `json:"kind"`
	SandboxID       string            `json:"sandbox_id"`
	Identity        sdk.Identity      `json:"identity"`
	Profile         sdk.Profile       `json:"profile"`
	CreatedAt       time.Time         `json:"created_at"`
	ExpiresAt       time.Time         `json:"expires_at"`
	Event           sdk.EventRef      `json:"event"`
	ContainsSecrets bool              `json:"contains_secrets"`
	Lost            []string          `json:"lost,omitempty"`
	Files           []File            `json:"files"`
	Image           string            `json:"image,omitempty"` // digest; empty is the host's own root
	ImageEnv        map[string]string `json:"image_env,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	Home            string            `json:"home,omitempty"`
	Host            Host              `json:"host"`
	Network         string            `json:"network"`           // the runtime's network type
	Gateway         bool              `json:"gateway,omitempty"` // the network had a way out
	Names           []string          `json:"names,omitempty"`   // of a memory snapshot: those with an address, in its order
	Process         Process           `json:"process"`
	Spec            json.RawMessage   `json:"spec,omitempty"` // of a memory snapshot
	// Volumes are directories that were volumes on another backend.
	Volumes  []string  `json:"volumes,omitempty"`
	Imported *Imported `json:"imported,omitempty"` // of a snapshot that came as an archive
}

// Imported is what is known of the archive that a snapshot came as. All of
// its content is the image.
type Imported struct {
	Digest string `json:"digest"` // "sha256:…"
	Size   int64  `json:"size"`   // of the unpacked image
}

// Has reports whether a snapshot has a content file.
func (m Manifest) Has(name string) bool {
	return slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == name })
}

// Process is the main process of the sandbox that a snapshot was made from.
type Process struct {
	Command []string // empty is none: the sandbox then waits for commands
	Env     []string
	Workdir string
	UID     uint32
	GID     uint32
	Groups  []uint32
	// Group names the control group that it is in, in the sandbox's own kernel;
	// empty where there is none. It keeps its name in a restored sandbox.
	Group string
}

// File is one content file.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// ModifiedAt is when the file had this digest.
	ModifiedAt time.Time `json:"modified_at,omitzero"`
}

// Size returns the bytes at rest.
func (m Manifest) Size() (n int64) {
	if m.Imported != nil {
		n = m.Imported.Size
	}
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Digest returns a digest of the content, over the digests of its files.
func (m Manifest) Digest() string {
	if m.Imported != nil {
		return m.Imported.Digest
	}
	h := sha256.New()
	for _, f := range m.Files {
		fmt.Fprintf(h, "%s  %s\n", f.SHA256, f.Name)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Read returns the manifest of a snapshot, or ErrGone.
func Read(dir string) (Manifest, error) {
	f, err := os.OpenFile(filepath.Join(dir, manifestName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Manifest{}, ErrGone
	}
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return Manifest{}, err
	}
	return Decode(data)
}

// Decode reads a manifest. It may come from anywhere, so what is used as a
// file's name is checked here.
func Decode(data []byte) (Manifest, error) {
	if len(data) > maxManifest {
		return Manifest{}, fmt.Errorf("manifest is larger than %d bytes", maxManifest)
	}
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	if version.Format > Format || version.Format < 1 {
		return Manifest{}, fmt.Errorf("manifest has format %d and this program knows %d", version.Format, Format)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	for _, f := range m.Files {
		if f.Name == "" || f.Name != filepath.Base(f.Name) || f.Name == ".." || f.Name == "." {
			return Manifest{}, fmt.Errorf("manifest: %.80q is not a file's name", f.Name)
		}
		if f.Size < 0 {
			return Manifest{}, fmt.Errorf("manifest: %s has %d bytes", f.Name, f.Size)
		}
	}
	if m.Image != "" && !validDigest(m.Image) {
		return Manifest{}, fmt.Errorf("manifest: %.80q is not a digest", m.Image)
	}
	return m, nil
}

func validDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// Write writes a manifest durably.
func Write(dir string, m Manifest) error {
	m.Format = Format
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return record.WriteFile(filepath.Join(dir, manifestName), data, 0o600)
}

// Seal makes the content of a new snapshot durable and private, and returns
// what it is.
func Seal(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, entry := range entries {
		if entry.Name() == "lock" {
			continue
		}
		file, err := seal(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, record.SyncDir(dir)
}

func seal(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, errors.New("not a regular file")
	}
	if err := f.Chmod(0o600); err != nil {
		return File{}, err
	}
	digest, n, err := hash(f)
	if err != nil {
		return File{}, err
	}
	return File{Name: filepath.Base(path), Size: n, SHA256: digest, ModifiedAt: info.ModTime().UTC()}, f.Sync()
}

func hash(f *os.File) (digest string, size int64, err error) {
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// CheckFiles makes sure that the content is there, and what it was. Hashing
// takes longer than a restore, so only a file that was written to or copied
// since is hashed.
func (m Manifest) CheckFiles(dir string) error {
	for _, f := range m.Files {
		if err := f.check(dir); err != nil {
			return err
		}
	}
	return nil
}

func (f File) check(dir string) error {
	content, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != f.Size {
		return fmt.Errorf("%s has %d bytes, not %d", f.Name, info.Size(), f.Size)
	}
	if info.ModTime().Equal(f.ModifiedAt) {
		return nil
	}
	digest, _, err := hash(content)
	if err != nil {
		return err
	}
	if digest != f.SHA256 {
		return fmt.Errorf("%s was changed since the snapshot was made: its SHA-256 is %s, not %s", f.Name, digest, f.SHA256)
	}
	return nil
}
