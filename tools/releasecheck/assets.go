// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"golang.org/x/mod/sumdb/dirhash"
)

// project is the name of the provider's repository, which every file of a
// release begins with.
const project = "terraform-provider-sandboxer"

// protocol is the version of Terraform's plugin protocol that the provider
// speaks. Without a manifest that says so, the registries assume 5.0.
const protocol = "6.0"

// assets are the files of a release that a registry looks at, in memory: a
// check damages a copy and serves that.
type assets struct {
	version  string
	os, arch string
	files    map[string][]byte
}

func (a *assets) archive() string {
	return fmt.Sprintf("%s_%s_%s_%s.zip", project, a.version, a.os, a.arch)
}
func (a *assets) manifest() string  { return fmt.Sprintf("%s_%s_manifest.json", project, a.version) }
func (a *assets) sums() string      { return fmt.Sprintf("%s_%s_SHA256SUMS", project, a.version) }
func (a *assets) signature() string { return a.sums() + ".sig" }

// readAssets reads the files of a release from a directory. The signature is
// made afterwards.
func readAssets(dir, version, goos, goarch string) (*assets, error) {
	a := &assets{version: version, os: goos, arch: goarch, files: map[string][]byte{}}
	for _, name := range []string{a.archive(), a.manifest(), a.sums()} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("a file of the release is missing under the name that the registries ask for: %w", err)
		}
		a.files[name] = data
	}
	return a, nil
}

// with returns a copy in which one file has another content.
func (a *assets) with(name string, data []byte) *assets {
	files := map[string][]byte{}
	for n, d := range a.files {
		files[n] = d
	}
	files[name] = data
	return &assets{version: a.version, os: a.os, arch: a.arch, files: files}
}

// signed returns a copy whose checksums are signed by a key.
func (a *assets) signed(key *openpgp.Entity) (*assets, error) {
	var sig bytes.Buffer
	if err := openpgp.DetachSign(&sig, key, bytes.NewReader(a.files[a.sums()]), nil); err != nil {
		return nil, fmt.Errorf("sign %s: %w", a.sums(), err)
	}
	return a.with(a.signature(), sig.Bytes()), nil
}

// newKey makes a key that lives as long as this process. RSA, because the
// Terraform Registry takes no other than RSA and DSA keys.
func newKey(name string) (*openpgp.Entity, error) {
	return openpgp.NewEntity(name, "throw-away key of a check", name+"@example.invalid", &packet.Config{Algorithm: packet.PubKeyAlgoRSA, RSABits: 3072})
}

// public returns the public half of a key as a registry gives it out.
func public(key *openpgp.Entity) (string, error) {
	var out bytes.Buffer
	w, err := armor.Encode(&out, openpgp.PublicKeyType, nil)
	if err != nil {
		return "", err
	}
	if err := key.Serialize(w); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return out.String(), nil
}

// verify checks a release as a registry does before it publishes it, and as
// whoever fills a mirror has to: Terraform checks no signature of what comes
// from a mirror.
func (a *assets) verify(key *openpgp.Entity) error {
	sums, sig := a.files[a.sums()], a.files[a.signature()]
	if bytes.HasPrefix(bytes.TrimSpace(sig), []byte("-----BEGIN")) {
		return fmt.Errorf("%s is armored: the registries take a binary signature only", a.signature())
	}
	if _, err := openpgp.CheckDetachedSignature(openpgp.EntityList{key}, bytes.NewReader(sums), bytes.NewReader(sig), nil); err != nil {
		return fmt.Errorf("%s is no signature of %s by the key of the release: %w", a.signature(), a.sums(), err)
	}
	listed, err := parseSums(sums)
	if err != nil {
		return fmt.Errorf("%s: %w", a.sums(), err)
	}
	for _, name := range []string{a.archive(), a.manifest()} {
		switch want, there := listed[name]; {
		case !there:
			return fmt.Errorf("%s does not list %s", a.sums(), name)
		case want != digest(a.files[name]):
			return fmt.Errorf("%s has another checksum than %s says", name, a.sums())
		}
	}
	return a.verifyManifest()
}

// verifyManifest checks what the manifest says.
func (a *assets) verifyManifest() error {
	var manifest struct {
		Version  int `json:"version"`
		Metadata struct {
			Protocols []string `json:"protocol_versions"`
		} `json:"metadata"`
	}
	decoder := json.NewDecoder(bytes.NewReader(a.files[a.manifest()]))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&manifest); err != nil {
		return fmt.Errorf("%s: %w", a.manifest(), err)
	}
	if manifest.Version != 1 || !slices.Equal(manifest.Metadata.Protocols, []string{protocol}) {
		return fmt.Errorf("%s has the version %d and the protocols %v, want 1 and [%s]", a.manifest(), manifest.Version, manifest.Metadata.Protocols, protocol)
	}
	return nil
}

// parseSums reads lines of a SHA-256 and a name, as sha256sum writes them.
func parseSums(data []byte) (map[string]string, error) {
	listed := map[string]string{}
	for line := range strings.Lines(string(data)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if raw, err := hex.DecodeString(sum); err != nil || !ok || len(raw) != sha256.Size || name == "" || strings.ContainsAny(name, `/\ `) {
			return nil, fmt.Errorf("%q is not a line of a checksum and a file name", line)
		}
		if _, twice := listed[name]; twice {
			return nil, fmt.Errorf("%s is listed twice", name)
		}
		listed[name] = sum
	}
	if len(listed) == 0 {
		return nil, errors.New("no file is listed")
	}
	return listed, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// zipHash is Terraform's zh: hash of an archive, its SHA-256.
func zipHash(archive []byte) string { return "zh:" + digest(archive) }

// dirHash is Terraform's h1: hash of a release: of the files in its archive,
// so that a packed and an unpacked one have the same.
func dirHash(archive []byte) (string, error) {
	files, err := unpack(archive)
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	return dirhash.Hash1(names, func(name string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files[name])), nil
	})
}

// spoilHash returns a hash of the same kind that no archive has.
func spoilHash(hash string) string {
	kind, _, _ := strings.Cut(hash, ":")
	sum := sha256.Sum256([]byte("another release"))
	if kind == "h1" {
		return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
	}
	return kind + ":" + hex.EncodeToString(sum[:])
}
