// A management server for the end to end tests: go-control-plane as it is, which is what Envoy Gateway serves with.
//
//	xds-server -xds 127.0.0.1:0 -control 127.0.0.1:0 [-cert FILE -key FILE -client-ca FILE]
//	xds-server -issue FOLDER          writes certificates for that, and ends
//
// It prints the two addresses that it listens on. Over the control port a test says what is to be served, and sees
// what the client under test has sent:
//
//	POST /snapshot?node=N&version=V   a JSON list of RateLimitConfigs; node N is served these from now on
//	GET  /requests                    a JSON list of all discovery requests so far
//
// It lives as long as its test lets it, and serves only the loopback.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
)

// The largest list of resources that a test may set, in bytes.
const snapshotMax = 64 << 20

func main() {
	xds := flag.String("xds", "127.0.0.1:0", "where discovery is served")
	control := flag.String("control", "127.0.0.1:0", "where tests say what is served")
	cert := flag.String("cert", "", "PEM file of a certificate; with it, discovery speaks TLS")
	key := flag.String("key", "", "PEM file of the certificate's key")
	clientCA := flag.String("client-ca", "", "PEM file of the authority that clients' certificates must be of")
	certificates := flag.String("issue", "", "write certificates into this folder, and end")
	flag.Parse()

	if *certificates != "" {
		if err := issue(*certificates); err != nil {
			log.Fatal(err)
		}
		return
	}
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	seen := &requests{}
	var options []grpc.ServerOption
	if *cert != "" {
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig(*cert, *key, *clientCA))))
	}
	rpc := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(rpc, server.NewServer(context.Background(), snapshots, seen.callbacks()))

	routes := http.NewServeMux()
	routes.HandleFunc("POST /snapshot", func(w http.ResponseWriter, r *http.Request) {
		if err := setSnapshot(r, snapshots); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	routes.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) { seen.write(w) })

	go func() { log.Fatal(http.Serve(listen("control", *control), routes)) }()
	log.Fatal(rpc.Serve(listen("xds", *xds)))
}

func listen(what, address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s listening on %s\n", what, listener.Addr())
	return listener
}

func tlsConfig(cert, key, clientCA string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		if err != nil {
			log.Fatal(err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			log.Fatalf("%s holds no certificate", clientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config
}

func setSnapshot(r *http.Request, snapshots cache.SnapshotCache) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, snapshotMax))
	if err != nil {
		return err
	}
	var texts []json.RawMessage
	if err := json.Unmarshal(body, &texts); err != nil {
		return err
	}
	configs := make([]types.Resource, 0, len(texts))
	for _, text := range texts {
		config := &ratelimit.RateLimitConfig{}
		if err := protojson.Unmarshal(text, config); err != nil {
			return err
		}
		configs = append(configs, config)
	}
	query := r.URL.Query()
	snapshot, err := cache.NewSnapshot(query.Get("version"), map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: configs,
	})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(r.Context(), query.Get("node"), snapshot)
}

// What clients have sent, in order.
type requests struct {
	mutex sync.Mutex
	list  []request
}

type request struct {
	Node          string         `json:"node"`
	Metadata      map[string]any `json:"metadata"`
	Authorization []string       `json:"authorization"`
	Version       string         `json:"version"`
	Nonce         string         `json:"nonce"`
	Answers       string         `json:"answers"` // The version that was sent under this nonce.
	TypeURL       string         `json:"type_url"`
	Error         string         `json:"error"`
}

// A response, by what makes it unique.
type sentAs struct {
	stream int64
	nonce  string
}

func (s *requests) callbacks() server.Callbacks {
	var headers, versions sync.Map
	return server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, stream int64, _ string) error {
			given, _ := metadata.FromIncomingContext(ctx)
			headers.Store(stream, given.Get("authorization"))
			return nil
		},
		StreamClosedFunc: func(stream int64, _ *core.Node) { headers.Delete(stream) },
		StreamResponseFunc: func(_ context.Context, stream int64, _ *discovery.DiscoveryRequest, sent *discovery.DiscoveryResponse) {
			versions.Store(sentAs{stream, sent.GetNonce()}, sent.GetVersionInfo())
		},
		StreamRequestFunc: func(stream int64, r *discovery.DiscoveryRequest) error {
			authorization, _ := headers.Load(stream)
			given, _ := authorization.([]string)
			version, _ := versions.Load(sentAs{stream, r.GetResponseNonce()})
			answers, _ := version.(string)
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.list = append(s.list, request{
				Node:          r.GetNode().GetId(),
				Metadata:      r.GetNode().GetMetadata().AsMap(),
				Authorization: given,
				Version:       r.GetVersionInfo(),
				Nonce:         r.GetResponseNonce(),
				Answers:       answers,
				TypeURL:       r.GetTypeUrl(),
				Error:         r.GetErrorDetail().GetMessage(),
			})
			return nil
		},
	}
}

func (s *requests) write(w http.ResponseWriter) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	w.Header().Set("content-type", "application/json")
	if err := json.NewEncoder(w).Encode(s.list); err != nil {
		log.Print(err)
	}
}
