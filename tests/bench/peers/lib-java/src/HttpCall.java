// SPDX-License-Identifier: Apache-2.0
package bench;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/** POSTs payloads to RECEIVER_URL by the JDK's own client, which keeps its connections. */
final class HttpCall {
    private static final Duration TIME_OUT = Duration.ofSeconds(30);

    private final HttpClient client =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final URI receiver;

    HttpCall(String receiver) {
        this.receiver = URI.create(receiver);
    }

    void post(String payload) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(receiver)
                .timeout(TIME_OUT)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(payload))
                .build();
        int status;
        try {
            status = client.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
        } catch (IOException e) {
            throw new IOException("no answer from " + receiver + ": " + e, e);
        }
        if (status != 200) {
            throw new IOException("the receiver answered " + status);
        }
    }
}
