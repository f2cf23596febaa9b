// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtest

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"os"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Keys makes keys for a test.
type Keys struct{ T testing.TB }

// New makes an ed25519 key, writes the private one to a file and the public
// one beside it.
func (k Keys) New(file string) ssh.Signer {
	k.T.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		k.T.Fatal(err)
	}
	return k.Write(file, private)
}

// Write writes a private key to a file and the public one beside it.
func (k Keys) Write(file string, private crypto.PrivateKey) ssh.Signer {
	k.T.Helper()
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		k.T.Fatal(err)
	}
	return k.write(file, private, block)
}

// Encrypt writes a private key that a passphrase opens.
func (k Keys) Encrypt(file string, private crypto.PrivateKey, passphrase string) ssh.Signer {
	k.T.Helper()
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(passphrase))
	if err != nil {
		k.T.Fatal(err)
	}
	return k.write(file, private, block)
}

func (k Keys) write(file string, private crypto.PrivateKey, block *pem.Block) ssh.Signer {
	k.T.Helper()
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		k.T.Fatal(err)
	}
	for name, content := range map[string][]byte{file: pem.EncodeToMemory(block), file + ".pub": ssh.MarshalAuthorizedKey(signer.PublicKey())} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			k.T.Fatal(err)
		}
	}
	return signer
}
