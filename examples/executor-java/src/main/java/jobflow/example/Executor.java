// SPDX-License-Identifier: Apache-2.0
package jobflow.example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.json.JsonParserFactory;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.context.event.EventListener;
import org.springframework.http.HttpHeaders;
import org.springframework.http.ResponseEntity;
import org.springframework.http.client.SimpleClientHttpRequestFactory;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.web.bind.annotation.*;
import org.springframework.web.client.RestClient;

/** Receives JobFlow's tasks. mvn package, then
 * java -jar target/executor.jar --server.port=PORT --jobflow=URL --secret=SECRET */
@SpringBootApplication @EnableScheduling @RestController
public class Executor {
    @Value("${jobflow}/api/services/java/instances") String instances;
    @Value("${HOSTNAME:localhost}:${server.port}") String instance; // the same after a restart
    @Value("http://127.0.0.1:${server.port}/jobflow") String baseUrl;
    @Value("${secret}") String secret;
    final RestClient client = RestClient.builder().requestFactory(
        new SimpleClientHttpRequestFactory() {{ setConnectTimeout(2000); setReadTimeout(4000); }}).build();
    final Set<Object> done = new LinkedHashSet<>(); // trace ids; yours are in your database
    boolean leaves;

    public static void main(String[] args) {
        SpringApplication.run(Executor.class, args);
    }

    @PostMapping("/jobflow/greet") // what it returns is the answer; what it throws is retried
    Object greet(@RequestHeader HttpHeaders headers, @RequestBody byte[] body) throws Exception {
        if (!isSigned(headers, body))
            return ResponseEntity.status(401).body(Map.of("message", "the signature is wrong"));
        var task = JsonParserFactory.getJsonParser().parseMap(new String(body, UTF_8));
        synchronized (done) { // a task may come again, even while it is worked on
            if (done.contains(task.get("traceId"))) return Map.of("success", true);
            if (!(task.get("payload") instanceof Map<?, ?> payload && payload.containsKey("name")))
                return Map.of("success", false, "retryable", false, "message", "it needs a name");
            done.add(task.get("traceId"));
            if (done.size() > 1000) done.remove(done.iterator().next());
            return Map.of("success", true, "message", "hello " + payload.get("name"));
        }
    }

    /** Standard Webhooks: HMAC-SHA256 over "id.timestamp.body", in one of several signatures. */
    boolean isSigned(HttpHeaders headers, byte[] body) throws Exception {
        String sent = String.valueOf(headers.getFirst("webhook-timestamp"));
        if (!sent.matches("[0-9]{1,12}")) return false;
        boolean isFresh = Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(sent)) <= 300;
        byte[] key = secret.startsWith("whsec_")
            ? Base64.getDecoder().decode(secret.substring(6)) : secret.getBytes(UTF_8);
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        mac.update((headers.getFirst("webhook-id") + "." + sent + ".").getBytes(UTF_8));
        String right = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
        String signatures = String.valueOf(headers.getFirst("webhook-signature"));
        return isFresh && Arrays.stream(signatures.split(" ")).anyMatch(
            one -> MessageDigest.isEqual(right.getBytes(UTF_8), one.getBytes(UTF_8)));
    }

    @Scheduled(fixedRate = 5000) // a third of the ttl; what fails is logged
    synchronized void register() {
        if (leaves) return;
        var said = Map.of("instance", instance, "baseUrl", baseUrl, "ttl", "15s");
        client.post().uri(instances).body(said).retrieve().toBodilessEntity();
    }

    @EventListener(ContextClosedEvent.class) // on SIGTERM, while tasks are still taken
    synchronized void leave() {
        leaves = true;
        client.delete().uri(instances + "/" + instance).retrieve().toBodilessEntity();
    }
}
