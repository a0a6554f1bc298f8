# A router as one static program that runs as nobody in particular: docker build -t shardgate .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -ldflags=-s -o /shardgate ./cmd/shardgate

FROM scratch
COPY --from=build /shardgate /shardgate
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532
EXPOSE 27017
HEALTHCHECK --interval=5s --timeout=10s --start-period=30s CMD ["/shardgate", "ping"]
ENTRYPOINT ["/shardgate"]
CMD ["serve"]
