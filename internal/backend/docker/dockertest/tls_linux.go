// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	next        int64
}

func newAuthority() (*authority, error) {
	a := &authority{next: 2}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: now().Add(-time.Hour), NotAfter: now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	a.certificate, err = x509.ParseCertificate(raw)
	return a, err
}

// now is the machine's time, by which the engine judges certificates.
func now() time.Time { return clock.System{}.Now() }

// issue writes ca.pem of the issuer that is to be believed, and cert.pem and
// key.pem of this one, into a directory.
func (a *authority) issue(dir string, believed *authority, usage x509.ExtKeyUsage) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: filepath.Base(dir)}, NotBefore: now().Add(-time.Hour), NotAfter: now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	a.next++
	certificate, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	write := func(name, kind string, content []byte) error {
		return os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
	}
	return errors.Join(write("ca.pem", "CERTIFICATE", believed.certificate.Raw), write("cert.pem", "CERTIFICATE", certificate), write("key.pem", "EC PRIVATE KEY", private))
}

// makeCertificates makes those of an engine and of its clients below a
// directory: "server", "client", which are made for each other; "stranger",
// a client that the engine does not believe; and "deceived", one that believes
// another server.
func makeCertificates(dir string) error {
	ours, err := newAuthority()
	if err != nil {
		return err
	}
	other, err := newAuthority()
	if err != nil {
		return err
	}
	return errors.Join(
		ours.issue(filepath.Join(dir, "server"), ours, x509.ExtKeyUsageServerAuth),
		ours.issue(filepath.Join(dir, "client"), ours, x509.ExtKeyUsageClientAuth),
		other.issue(filepath.Join(dir, "stranger"), ours, x509.ExtKeyUsageClientAuth),
		ours.issue(filepath.Join(dir, "deceived"), other, x509.ExtKeyUsageClientAuth),
	)
}
