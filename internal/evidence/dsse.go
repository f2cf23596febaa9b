// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// PayloadType is the type of what an envelope holds.
	PayloadType = "application/vnd.in-toto+json"
	// MaxSize bounds an envelope, in bytes.
	MaxSize = 16 << 20
	// maxSignatures bounds the signatures of one.
	maxSignatures = 16
)

// envelope is a DSSE envelope.
type envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     string      `json:"payload"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"`
}

// pae is DSSE's pre-authentication encoding: what is signed.
func pae(payloadType string, payload []byte) []byte {
	return append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(payloadType), payloadType, len(payload)), payload...)
}

// Sign returns the statement in a signed envelope.
func Sign(statement Statement, key ed25519.PrivateKey) ([]byte, error) {
	if err := statement.check(); err != nil {
		return nil, fmt.Errorf("sign a receipt: %w", err)
	}
	payload, err := json.Marshal(statement)
	if err != nil {
		return nil, fmt.Errorf("sign a receipt: %w", err)
	}
	public, isKey := key.Public().(ed25519.PublicKey)
	if !isKey {
		return nil, errors.New("sign a receipt: the key is no ed25519 key")
	}
	sealed, err := json.Marshal(envelope{
		PayloadType: PayloadType,
		Payload:     base64.StdEncoding.EncodeToString(payload),
		Signatures:  []signature{{KeyID: KeyID(public), Sig: base64.StdEncoding.EncodeToString(ed25519.Sign(key, pae(PayloadType, payload)))}},
	})
	if err != nil {
		return nil, fmt.Errorf("sign a receipt: %w", err)
	}
	if sealed = append(sealed, '\n'); len(sealed) > MaxSize {
		return nil, fmt.Errorf("sign a receipt: it is larger than %d MiB", MaxSize>>20)
	}
	return sealed, nil
}

// Verify returns the statement of an envelope that one of the keys has
// signed, and that key's id. Nothing of the statement is read before its
// signature was checked.
func Verify(sealed []byte, keys ...ed25519.PublicKey) (Statement, string, error) {
	if len(sealed) > MaxSize {
		return Statement{}, "", fmt.Errorf("the receipt is larger than %d MiB", MaxSize>>20)
	}
	var e envelope
	if err := json.Unmarshal(sealed, &e); err != nil {
		return Statement{}, "", fmt.Errorf("the receipt is no envelope: %w", err)
	}
	if e.PayloadType != PayloadType {
		return Statement{}, "", fmt.Errorf("the receipt holds %.80q, not %s", e.PayloadType, PayloadType)
	}
	if len(e.Signatures) == 0 || len(e.Signatures) > maxSignatures {
		return Statement{}, "", fmt.Errorf("the receipt has %d signatures, not 1 to %d", len(e.Signatures), maxSignatures)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		return Statement{}, "", fmt.Errorf("the receipt's payload: %w", err)
	}
	signer, err := e.signer(payload, keys)
	if err != nil {
		return Statement{}, "", err
	}
	var statement Statement
	decoder := json.NewDecoder(bytes.NewReader(payload))
	// A field that is not known here could change what the others say.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&statement); err != nil {
		return Statement{}, "", fmt.Errorf("the receipt's statement: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Statement{}, "", errors.New("the receipt's statement: something follows it")
	}
	if err := statement.check(); err != nil {
		return Statement{}, "", fmt.Errorf("the receipt's statement: %w", err)
	}
	return statement, signer, nil
}

// signer returns the id of the key that has signed. The ids in the envelope
// are hints and not signed: every key is tried.
func (e envelope) signer(payload []byte, keys []ed25519.PublicKey) (string, error) {
	signed := pae(e.PayloadType, payload)
	for _, s := range e.Signatures {
		sig, err := base64.StdEncoding.DecodeString(s.Sig)
		if err != nil {
			continue
		}
		for _, key := range keys {
			if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, signed, sig) {
				return KeyID(key), nil
			}
		}
	}
	return "", fmt.Errorf("the receipt is not signed by the key that was given, or was changed since (it names the key %.80q)", e.Signatures[0].KeyID)
}
