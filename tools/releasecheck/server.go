// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
)

// The address of the provider.
const (
	host      = "registry.terraform.io"
	namespace = "sand-boxer"
	typeName  = "sandboxer"
	source    = host + "/" + namespace + "/" + typeName
)

// The roots of the three things that the server serves.
const (
	registryRoot = "/v1/providers/"
	mirrorRoot   = "/mirror/"
	assetsRoot   = "/assets/"
)

// discovery is where a registry says at which path its protocol is served.
const discovery = "/.well-known/terraform.json"

// server serves one release on loopback, as a registry and as a network
// mirror. Terraform speaks to neither without TLS.
type server struct {
	*httptest.Server
	ca []byte // certificate of the throw-away authority, PEM

	mu       sync.Mutex
	pages    map[string][]byte
	requests []string
}

// newServer starts a server with a certificate of a new authority, whose
// private key is forgotten at once.
func newServer() (*server, error) {
	ca, pair, err := certificate()
	if err != nil {
		return nil, err
	}
	s := &server{ca: ca}
	s.Server = httptest.NewUnstartedServer(s)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	return s, nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	page, there := s.pages[r.URL.Path]
	s.requests = append(s.requests, r.URL.Path)
	s.mu.Unlock()
	if !there {
		http.NotFound(w, r)
		return
	}
	if strings.HasSuffix(r.URL.Path, ".zip") {
		w.Header().Set("Content-Type", "application/zip")
	} else {
		w.Header().Set("Content-Type", "application/json")
	}
	_, _ = w.Write(page)
}

// serve replaces what is served and forgets the requests so far.
func (s *server) serve(pages map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages, s.requests = pages, nil
}

// asked tells whether a path was requested since serve.
func (s *server) asked(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r == path {
			return true
		}
	}
	return false
}

// registryPages lays a release out as the registry protocol has it, with the
// key that the namespace's owner gave the registry.
func (s *server) registryPages(a *assets, key *openpgp.Entity) (map[string][]byte, error) {
	armored, err := public(key)
	if err != nil {
		return nil, err
	}
	pages := map[string][]byte{}
	for name, data := range a.files {
		pages[assetsRoot+name] = data
	}
	object := registryRoot + namespace + "/" + typeName + "/"
	for path, value := range map[string]any{
		discovery: map[string]any{"providers.v1": registryRoot},
		object + "versions": map[string]any{"versions": []any{map[string]any{
			"version": a.version, "protocols": []string{protocol},
			"platforms": []any{map[string]any{"os": a.os, "arch": a.arch}},
		}}},
		object + a.version + "/download/" + a.os + "/" + a.arch: map[string]any{
			"protocols": []string{protocol}, "os": a.os, "arch": a.arch,
			"filename":              a.archive(),
			"download_url":          s.URL + assetsRoot + a.archive(),
			"shasums_url":           s.URL + assetsRoot + a.sums(),
			"shasums_signature_url": s.URL + assetsRoot + a.signature(),
			"shasum":                digest(a.files[a.archive()]),
			"signing_keys": map[string]any{"gpg_public_keys": []any{map[string]any{
				"key_id": key.PrimaryKey.KeyIdString(), "ascii_armor": armored,
			}}},
		},
	} {
		if pages[path], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// mirrorPages lays a release out as the network mirror protocol has it.
func mirrorPages(a *assets, hashes []string) (map[string][]byte, error) {
	object := mirrorRoot + source + "/"
	pages := map[string][]byte{object + a.archive(): a.files[a.archive()]}
	var err error
	for path, value := range map[string]any{
		"index.json": map[string]any{"versions": map[string]any{a.version: map[string]any{}}},
		a.version + ".json": map[string]any{"archives": map[string]any{
			a.os + "_" + a.arch: map[string]any{"url": a.archive(), "hashes": hashes},
		}},
	} {
		if pages[object+path], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// certificate makes an authority and a certificate of it for loopback.
func certificate() (authority []byte, pair tls.Certificate, err error) {
	begin := time.Now().Add(-time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "throw-away authority of a check"},
		NotBefore: begin, NotAfter: begin.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, pair, err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, pair, fmt.Errorf("authority: %w", err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "loopback"},
		NotBefore: begin, NotAfter: begin.Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, pair, err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	if err != nil {
		return nil, pair, fmt.Errorf("certificate: %w", err)
	}
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return authority, tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}, nil
}
