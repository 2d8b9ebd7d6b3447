package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Writes PEM files into a folder: an authority, and certificates with keys for a server and a client of it.
func issue(folder string) error {
	authority, err := newAuthority()
	if err != nil {
		return err
	}
	if err := write(filepath.Join(folder, "ca.pem"), "CERTIFICATE", authority.certificate.Raw); err != nil {
		return err
	}
	for _, name := range []string{"server", "client"} {
		if err := authority.issue(folder, name); err != nil {
			return err
		}
	}
	return nil
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	wanted := template("authority")
	wanted.IsCA, wanted.BasicConstraintsValid, wanted.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, wanted, wanted, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{certificate, key}, err
}

// Writes NAME.pem, for the host NAME.example, and NAME.key.
func (a *authority) issue(folder, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	wanted := template(name)
	wanted.DNSNames = []string{name + ".example"}
	wanted.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	certificate, err := x509.CreateCertificate(rand.Reader, wanted, a.certificate, key.Public(), a.key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(folder, name+".pem"), "CERTIFICATE", certificate); err != nil {
		return err
	}
	return write(filepath.Join(folder, name+".key"), "PRIVATE KEY", private)
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		panic(err) // The system has no random numbers.
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func write(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
