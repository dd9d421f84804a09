"""The files of the web page, as the server gives them out."""

def test_files(server, source):
    """Each is served with its type, its policy and a tag by which a browser asks whether it has changed."""
    files = sorted((source / "src/server/web").iterdir())
    for file in files:
        status, headers, body = server.request(f"/{file.name}")
        assert (status, body) == (200, file.read_bytes()), file
        assert headers["Content-Type"].endswith("; charset=utf-8") and headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
        status, again, body = server.request(f"/{file.name}", headers={"If-None-Match": f'W/"x", {headers["ETag"]}'})
        assert (status, body, again["ETag"]) == (304, b"", headers["ETag"])
        status, again, body = server.request(f"/{file.name}", method="HEAD")
        assert (status, body, again["Content-Length"]) == (200, b"", str(file.stat().st_size))
        assert b"http" not in file.read_bytes().replace(b"http://www.w3.org/2000/svg", b"") or file.suffix == ".js"
    assert server.get("/")[1] == (source / "src/server/web/index.html").read_bytes()
    assert server.get("/page.js")[0] == 404
