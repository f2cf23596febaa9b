// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// The files of a directory of keys.
const (
	KeyFile    = "receipt.key" // PKCS #8 in PEM
	PublicFile = "receipt.pub" // PKIX in PEM
)

const (
	privateType = "PRIVATE KEY"
	publicType  = "PUBLIC KEY"
	maxKeyFile  = 1 << 14
	othersMay   = fs.FileMode(0o077)
)

// Key returns the key in a directory. Where there is none, it makes one; of
// several who do so at the same time, all get the same. A key that others
// may read is refused.
func Key(dir string) (ed25519.PrivateKey, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("key of receipts: %w", err)
	}
	if err := private(dir, true); err != nil {
		return nil, fmt.Errorf("key of receipts: %w", err)
	}
	file := filepath.Join(dir, KeyFile)
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(file); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("key of receipts: %w", err)
		}
	}
	key, err := loadKey(file)
	if err == nil {
		err = publish(filepath.Join(dir, PublicFile), key)
	}
	if err != nil {
		return nil, fmt.Errorf("key of receipts: %w", err)
	}
	return key, nil
}

// private refuses a file or directory that is not the owner's alone.
func private(name string, dir bool) error {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return err
	case dir && !info.IsDir():
		return fmt.Errorf("%s is no directory", name)
	case !dir && !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", name)
	case runtime.GOOS != "windows" && info.Mode().Perm()&othersMay != 0:
		return fmt.Errorf("%s has the mode %04o: others may get at the key; make a new one, or take the rights of others away", name, info.Mode().Perm())
	}
	return nil
}

func makeKey(file string) error {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	reserved, err := Reserve(file)
	if err != nil {
		return err
	}
	defer reserved.Abandon()
	return reserved.Write(pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}))
}

func loadKey(file string) (ed25519.PrivateKey, error) {
	if err := private(file, false); err != nil {
		return nil, err
	}
	der, err := readPEM(file, privateType)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, is := parsed.(ed25519.PrivateKey)
	if !is {
		return nil, fmt.Errorf("%s holds no ed25519 key", file)
	}
	return key, nil
}

// publish writes the public key beside the private one. Whoever writes it
// writes the same.
func publish(file string, key ed25519.PrivateKey) error {
	public, err := PublicKey(file)
	if err == nil && public.Equal(key.Public()) {
		return nil
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), ".public-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der}))
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), file)
}

// PublicKey reads a public key.
func PublicKey(file string) (ed25519.PublicKey, error) {
	der, err := readPEM(file, publicType)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, is := parsed.(ed25519.PublicKey)
	if !is {
		return nil, fmt.Errorf("%s holds no ed25519 key", file)
	}
	return key, nil
}

// KeyID returns the SHA-256 of a public key's DER, in hex.
func KeyID(key ed25519.PublicKey) string {
	// An ed25519 key always encodes.
	der, _ := x509.MarshalPKIXPublicKey(key)
	digest := sha256.Sum256(der)
	return hex.EncodeToString(digest[:])
}

func readPEM(file, want string) ([]byte, error) {
	content, err := ReadBounded(file, maxKeyFile)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != want {
		return nil, fmt.Errorf("%s holds no %s in PEM", file, want)
	}
	return block.Bytes, nil
}
